"""moto's S3 in a process of its own: a read through a mount that this process waited for could not be answered by it.

The first line of standard input is JSON, {bucket: [names of objects that begin as HDF5 files, and end there]}: one by one ten thousand would take a
minute. It prints its port, and serves until standard input ends. An argument is the address to listen at."""

import json
import logging
import sys

from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

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
