"""HTTP itself: authentication, dispatch of requests, answers and errors.

http.py           the web application: routes, probes, metrics; serves it
guard.py          which requests pass: names, sites, tokens; headers of every answer
signing_in.py     the token, and the cookie in its place
session.py        signing in and out, and the audit log, over HTTP
endpoint.py       an endpoint, declared once
query.py          parameters; filters, sorts and cuts lists
dispatch.py       decodes, checks, audits and answers what an endpoint declares
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
