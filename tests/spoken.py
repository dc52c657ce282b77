# SPDX-License-Identifier: Apache-2.0
"""A `kvferry ... worker` that is spoken to in lines: what it tells, in events and on standard error, and its end.

KVFERRY names the command under test. Nothing sleeps: a test waits for a line, a message or an end.
"""
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

KVFERRY = os.path.abspath(os.environ.get("KVFERRY", "kvferry"))


class SpokenWorker:
    """One worker, called `name` in failures. It waits `patience` seconds for whatever a test awaits."""

    def __init__(self, name, dialect, role, spec, path, patience):
        self.name, self.role, self.patience = name, role, patience
        self.path = Path(path)
        self.path.write_text(json.dumps(spec))
        self.popen = subprocess.Popen([KVFERRY, dialect, "worker", "--role", role, str(self.path)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      errors="backslashreplace")
        self.events, self.log, self.news = [], [], threading.Condition()
        self.readers = [threading.Thread(target=self._read, daemon=True),
                        threading.Thread(target=self._hear, daemon=True)]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.popen.stdout:
            try:
                event = json.loads(line)
                event["event"]
            except (ValueError, KeyError, TypeError):
                event = {"event": "garbage", "line": line}
            with self.news:
                self.events.append(event)
                self.news.notify_all()
        with self.news:
            self.events.append({"event": "eof"})
            self.news.notify_all()

    def _hear(self):
        for line in self.popen.stderr:
            with self.news:
                self.log.append(line.rstrip("\n"))
                self.news.notify_all()

    def __str__(self):
        return "%s\n%s\n%s" % (self.name, "\n".join(map(json.dumps, self.events[-40:])), "\n".join(self.log[-40:]))

    def all(self, kind, **members):
        """What it has told of a kind, or of one of several, so far."""
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return [event for event in list(self.events) if event["event"] in kinds and
                all(event.get(key) == value for key, value in members.items())]

    def find(self, kind, **members):
        """The first of them, or None."""
        return next(iter(self.all(kind, **members)), None)

    def event(self, kind, seconds=None, count=1, **members):
        """Waits for so many events of a kind, and returns the last of them."""
        seconds = self.patience if seconds is None else seconds
        end = time.monotonic() + seconds
        with self.news:
            while True:
                found = self.all(kind, **members)
                if len(found) >= count:
                    return found[count - 1]
                left = end - time.monotonic()
                if left <= 0 or self.all("eof"):
                    raise AssertionError("no %s %s within %d s: %s" % (kind, members, seconds, self))
                self.news.wait(left)

    def until(self, condition, what, seconds=None):
        seconds = self.patience if seconds is None else seconds
        with self.news:
            if not self.news.wait_for(condition, seconds):
                raise AssertionError("no %s within %d s: %s" % (what, seconds, self))

    def told(self, text, seconds=None):
        """Waits for a line on standard error."""
        self.until(lambda: any(text in line for line in self.log), "line that says \"%s\"" % text, seconds)

    def say(self, **line):
        self.raw(json.dumps(line) + "\n")

    def raw(self, text):
        self.popen.stdin.write(text)
        self.popen.stdin.flush()

    @property
    def ready(self):
        return self.event("ready")

    def alive(self):
        return self.popen.poll() is None

    def hurry(self):
        """Ends its input: it goes once all it has is ended."""
        if not self.popen.stdin.closed:
            try:
                self.popen.stdin.close()
            except BrokenPipeError:
                pass

    def end(self, code=0):
        """Ends in good order, with an exit code; None: any."""
        self.hurry()
        try:
            found = self.popen.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise AssertionError("does not end: %s" % self) from None
        for reader in self.readers:
            reader.join()
        self.popen.stdout.close()
        self.popen.stderr.close()
        if code is not None and found != code:
            raise AssertionError("ended with %d instead of %d: %s" % (found, code, self))
        return found

    def kill(self, number=signal.SIGKILL):
        if self.alive():
            self.popen.send_signal(number)
        if number == signal.SIGKILL:
            self.popen.wait()
