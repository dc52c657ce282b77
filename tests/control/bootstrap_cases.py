# SPDX-License-Identifier: Apache-2.0
"""Requests to a bootstrap registry of vLLM's Mooncake connector, in an order that matters: name, method, bytes."""
import json

WORKER = {"engine_id": "eng-1", "dp_rank": 0, "tp_rank": 0, "pp_rank": 0, "addr": "tcp://1.1.1.1:1111"}


def worker(**changes):
    return {key: value for key, value in {**WORKER, **changes}.items() if value is not ...}


def post(body, path="/register", content_type="application/json", extra="", method="POST"):
    if not isinstance(body, (str, bytes)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\n"
    if content_type is not None:
        head += f"Content-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def get(path="/query", method="GET", version="HTTP/1.1", extra=""):
    return f"{method} {path} {version}\r\nHost: h\r\n{extra}\r\n".encode()


def chunked(*pieces):
    head = b"POST /register HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x;note=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def registering():
    yield "query of nothing", get()
    yield "register", post(worker())
    yield "register again", post(worker())
    yield "slot taken", post(worker(addr="tcp://9.9.9.9:9999"))
    yield "another engine", post(worker(engine_id="eng-2", tp_rank=1))
    yield "another engine at a taken slot", post(worker(engine_id="eng-2", addr="tcp://9.9.9.9:9999"))
    yield "PP rank 1", post(worker(pp_rank=1, addr="tcp://2.2.2.2:2222"))
    yield "TP rank 1", post(worker(tp_rank=1, addr="tcp://3.3.3.3:3333"))
    yield "DP rank 7", post(worker(dp_rank=7, engine_id="eng-7"))
    yield "DP rank 3", post(worker(dp_rank=3, engine_id="eng-3"))
    yield "query in the order of registration", get()


def paths():
    yield "query string", get("/query?x=1&y")
    yield "query string of a registration", post(worker(), path="/register?a=b")
    for path in ("/query/", "/query//", "/query/?a=b", "/query/x", "/", "/nothing", "/Query", "/%71uery", "/register/"):
        yield "GET " + path, get(path)
        yield "HEAD " + path, get(path, method="HEAD")
    yield "POST /register/", post(worker(), path="/register/")
    yield "POST /query/", post("{}", path="/query/")
    for method in ("HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        yield method + " /query", get(method=method)
        yield method + " /register", get("/register", method=method)
    yield "POST /query", post("{}", path="/query")
    yield "GET /register", get("/register")
    yield "a whole URL", b"GET http://h/query HTTP/1.1\r\nHost: h\r\n\r\n"


def connections():
    yield "HTTP/1.0", get(version="HTTP/1.0")
    yield "HTTP/1.0 that would be kept", get(version="HTTP/1.0", extra="Connection: keep-alive\r\n")
    yield "Connection: close", get(extra="Connection: close\r\n")
    yield "Connection: close to a path that is not there", get("/x", extra="Connection: close\r\n")
    yield "no host", b"GET /query HTTP/1.0\r\n\r\n"
    yield "a body with GET", b"GET /query HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\n{}"
    yield "no HTTP", b"hello\r\n\r\n"
    yield "no version of HTTP", b"GET /query HTTP/9.9\r\nHost: h\r\n\r\n"
    yield "no length", b"POST /register HTTP/1.1\r\nHost: h\r\nContent-Length: abc\r\n\r\n{}"


def bodies():
    body = json.dumps(WORKER).encode()
    for content_type in (None, "application/json; charset=utf-8", "application/json;charset=latin-1",
                         "APPLICATION/JSON", "application/vnd.api+json", "application/problem+json", "text/json",
                         "text/plain", "application/x-www-form-urlencoded", "json", "", "application/jsonx",
                         "application/json, text/plain", "text/x+json", "application/+json", "application/",
                         "application/octet-stream"):
        yield f"content type {content_type}", post(worker(), content_type=content_type)
    yield "chunked", chunked(body)
    yield "chunked in three", chunked(body[:1], body[1:30], body[30:])
    yield "chunked, another engine", chunked(body.replace(b"eng-1", b"eng-9"))
    yield "Expect", post(worker(), extra="Expect: 100-continue\r\n")
    for text in ("", "{", "[]", "null", "1", '"x"', "{}", "{}x", "true", "[{}]", "[" + json.dumps(WORKER) + "]",
                 "{'a':1}", '{"a":1,}', "/*x*/{}", json.dumps(WORKER) + " \n", " \n" + json.dumps(WORKER),
                 json.dumps(WORKER) + "x"):
        yield f"body {text[:30]!r} {len(text)}", post(text)
    yield "unknown keys", post(worker(extra=1, more={"a": [1, {}]}))
    yield "keys twice", post('{"engine_id":"x","engine_id":"eng-1","dp_rank":5,"dp_rank":0,"tp_rank":0,"pp_rank":0,'
                             '"addr":"tcp://1.1.1.1:1111"}')
    yield "not UTF-8", post(b'{"engine_id":"\xff","dp_rank":9002,"tp_rank":0,"pp_rank":0,"addr":"a"}')
    yield "byte order mark", post(b"\xef\xbb\xbf" + body)
    for depth in (50, 500, 100000):
        yield f"{depth} levels", post('{"x":' + "[" * depth + "]" * depth + "," + json.dumps(WORKER)[1:])
    yield "many keys", post(worker(**{f"k{i}": i for i in range(5000)}))
    yield "a megabyte", post(worker(extra="x" * 1000000))


def members():
    for key in WORKER:
        yield f"no {key}", post(worker(**{key: ...}))
        yield f"null {key}", post(worker(**{key: None}))
    yield "two missing", post(worker(addr=..., dp_rank=...))
    for value in ("0", " 0 ", "+0", "-0", "0.0", "0.00", "0.5", "00", "0x0", "0_0", "1_0", "1__0", "_1", "1_", "", " ",
                  "1e0", "inf", "zero", 0.0, 0.5, -0.0, True, False, 1e2, [], {}, -1, "-1", "- 1", 2**31, 2**53,
                  2**63 - 1, -2**63, 1e15, 1e18, 9e18, 1e19, 1e300, "9223372036854775807", "-9223372036854775808",
                  "1.", ".0", "0.", "0." + "0" * 40, "12.000", "1e3", "+5", "++5", "1\n", "1\v", "\f1", "1 2",
                  "0" * 40 + "7"):
        yield f"pp_rank {value!r}", post(worker(dp_rank=50, engine_id="e", pp_rank=value))
    for number in ("1.0", "1e0", "10E-1", "-0", "01", "+1", "1.", ".5", "0x1", "1_000", "1.5e1", "15e-1", "NaN"):
        yield f"pp_rank spelled {number}", post(json.dumps(worker(dp_rank=51, engine_id="e", pp_rank="@"))
                                               .replace('"@"', number))
    for at, value in enumerate((1, 1.5, True, [], {}, "", " ", "a b", "\n", "\u20ac", "\"\\/\b\f\t", "\U0001f600",
                                "x" * 300, "\u007f", "\u2028", "<>&'", "\x01\x1f", "\u0085")):
        yield f"engine_id {str(value)[:10]!r} {at}", post(worker(dp_rank=100 + at, engine_id=value))
        yield f"addr {str(value)[:10]!r} {at}", post(worker(dp_rank=200 + at, addr=value))


    yield "query of all that", get()


def extremes():
    """What the directory does not take; then what a stock registry cannot tell any more, once it is registered."""
    for value in (2**63, "9223372036854775808", "\u00a01"):
        yield f"pp_rank {value!r}", post(worker(dp_rank=52, engine_id="e", pp_rank=value))
    for what, value in (("a zero", "\x00"), ("5000 bytes", "x" * 5000)):
        yield f"engine_id of {what}", post(worker(dp_rank=300, engine_id=value))
        yield f"addr of {what}", post(worker(dp_rank=301, addr=value))
    yield "half a character", post('{"engine_id":"\\ud800","dp_rank":9001,"tp_rank":0,"pp_rank":0,"addr":"a"}')
    yield "query at the end", get()


def cases():
    for part in (registering, paths, connections, bodies, members, extremes):
        for name, request in part():
            yield name, request.split(b" ", 1)[0].decode(), request
