"""What ranks of several processes say to each other ahead of each exchange.

A record has a fixed size, so that ranks that went different ways can still read what
the others called: what it is, which call, and how many bytes follow. Short messages
are within it, and take no second step.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np

from featgraph.distributed.engines.calls import Call
from featgraph.distributed.engines.messages import Bytes
from featgraph.errors import DistributedError

__all__ = ["INLINE_BYTES", "RECORD_BYTES", "Record", "called", "pack", "unpack"]

RECORD_BYTES = 512
#: Messages of so many bytes are within their record.
INLINE_BYTES = 192

#: Ends with the version of the protocol.
_MAGIC = b"fgr2"
_HEAD = struct.Struct("<4sBqqiH")
_TEXT_BYTES = RECORD_BYTES - INLINE_BYTES - _HEAD.size
_KINDS = ("call", "ended", "failed")


@dataclass(frozen=True)
class Record:
    """What a rank says to another.

    Attributes
    ----------
    kind : str
        "call"; "ended": it has come to its end; "failed": `rank` failed.
    number : int
        Its exchanges, this one included.
    text, about, given : str
        Of a call, as `Call` has them; why it failed.
    rank : int
        The rank that failed first, else -1.
    nbytes : int
        Bytes of the message that it came with.
    """

    kind: str
    number: int
    text: str = ""
    about: str = ""
    rank: int = -1
    nbytes: int = 0
    given: str = ""

    @property
    def call(self) -> Call:
        """The call, as it can be compared with those of other ranks."""
        return Call(self.number, self.text, self.about, self.given)


def called(call: Call) -> Record:
    """Return what a rank says of its call."""
    return Record("call", call.number, call.text, call.about, given=call.given)


def pack(record: Record, message: Bytes) -> Bytes:
    """Return a record as bytes, with the message if that is short."""
    said = "\0".join([record.text, record.about, record.given]).encode()
    if len(said) > _TEXT_BYTES:
        # Long texts that differ must stay different.
        digest = b"... " + hashlib.sha256(said).hexdigest()[:16].encode()
        cut = said[: _TEXT_BYTES - len(digest)].decode(errors="ignore").encode()
        said = cut + digest
    kind = _KINDS.index(record.kind)
    head = _HEAD.pack(_MAGIC, kind, record.number, message.size, record.rank, len(said))
    out = np.zeros(RECORD_BYTES, np.uint8)
    out[: _HEAD.size + len(said)] = np.frombuffer(head + said, np.uint8)
    if message.size <= INLINE_BYTES:
        out[RECORD_BYTES - INLINE_BYTES :][: message.size] = message
    return out


def unpack(data: Bytes, peer: int) -> tuple[Record, Bytes]:
    """Return what a rank said, and its message, if that is short enough to be there."""
    magic, kind, number, nbytes, rank, length = _HEAD.unpack(bytes(data[: _HEAD.size]))
    if magic != _MAGIC or kind >= len(_KINDS) or nbytes < 0 or length > _TEXT_BYTES:
        raise DistributedError(
            f"what came from rank {peer} cannot be read",
            got=f"{bytes(data[:8])!r}",
            expected=f"{_MAGIC!r}",
            fix="start all ranks with one version of featgraph, on a port of their own",
        )
    said = bytes(data[_HEAD.size : _HEAD.size + length]).decode(errors="replace")
    text, about, given = [*said.split("\0"), "", ""][:3]
    inline = data[RECORD_BYTES - INLINE_BYTES :]
    message = inline[: nbytes if nbytes <= INLINE_BYTES else 0].copy()
    return Record(_KINDS[kind], number, text, about, rank, nbytes, given), message
