import ast,sys,glob
files=[f for r in ('timeline','wire','node') for f in glob.glob(f'src/dovetail/{r}/**/*.py',recursive=True)]+['src/dovetail/storage/%s.py'%n for n in('calls','service','remote','cluster')]+['src/dovetail/coordination/membership.py']
tot=0
for f in sorted(files):
    t=open(f).read(); lines=t.split('\n')
    for n in ast.walk(ast.parse(t)):
        if isinstance(n,(ast.FunctionDef,ast.AsyncFunctionDef)):
            body=n.body[1:] if ast.get_docstring(n) is not None else n.body
            if not body: continue
            L=lines[body[0].lineno-1:n.end_lineno]
            longest=h=0
            for l in L:
                h=h+1 if l.strip() else 0
                longest=max(longest,h)
            st=sum(isinstance(c,ast.stmt) for c in ast.walk(n))-1
            if longest>int(sys.argv[1]) or st>40: print(f"{f}:{n.lineno} {n.name} wall={longest} st={st}"); tot+=1
print(tot)
