"""HTTP itself: who may ask, how a request reaches its handler, how it is answered.

http.py           the web application: routes, probes, metrics; serving it
guard.py          which requests pass: names, sites, tokens; headers of every answer
signing_in.py     the token and the cookie that stands for it
session.py        signing in and out, and the audit log, over HTTP
endpoint.py       an endpoint, declared once
query.py          parameters; lists filtered, sorted and cut
dispatch.py       what an endpoint declares is decoded, checked, audited and answered
errors.py         errors as statuses and documents
content.py        bytes in JSON
audit.py          the audit log of changes
event_stream.py   server-sent events
download.py       a backup, sent while it is made
openapi.py        the description of the API, from the declared endpoints
docs_page.py      the same for people
pages.py          the console's files
threads.py        threads for blocking calls
"""
