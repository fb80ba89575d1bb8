#!/bin/sh
# With kcat: examples/due/remind.sh 'call Ada' 5s [127.0.0.1:9092]
printf '%s\n' "$1" | kcat -P -b "${3:-127.0.0.1:9092}" -t reminders -H "dovetail-delay=$2"
