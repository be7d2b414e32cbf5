"""moto's S3 in a process of its own: a read through a mount that this process waited for could not be answered by it.

The first line of standard input is JSON, {bucket: [names of objects that begin as HDF5 files, and end there]}: one by one ten thousand would take a
minute. It prints its port, and serves until standard input ends. An argument is the address to listen at.

moto looks whether a name is free and takes it afterwards: of two conditional puts at the same time both can succeed. Here one waits for the
other, as in a real bucket."""

import functools
import json
import logging
import sys
import threading

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

turn = threading.Lock()


def one_at_a_time(answer):
    @functools.wraps(answer)
    def in_turn(*arguments):
        with turn:
            return answer(*arguments)

    return in_turn


# The request has been read to its end when moto calls these.
S3Response._key_response_put = one_at_a_time(S3Response._key_response_put)
S3Response._key_response_post = one_at_a_time(S3Response._key_response_post)
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1", 0, verbose=False)
server.start()
backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
for bucket, names in json.loads(sys.stdin.readline()).items():
    backend.create_bucket(bucket, "us-east-1")
    for name in names:
        backend.put_object(bucket, name, b"\x89HDF\r\n\x1a\n")
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
