"""Records: headers of fixed size that processes send before each message.

A record has the kind, the call, and the number of bytes that follow. Its size is fixed,
so that ranks with different calls can still read each other's records. Short messages
are stored within it, and need no second transfer.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from featgraph.base.dataclass import dataclass
from featgraph.base.errors import DistributedError
from featgraph.ranks.engines.calls import Call
from featgraph.ranks.engines.messages import Bytes

__all__ = ["INLINE_BYTES", "RECORD_BYTES", "Record", "called", "pack", "unpack"]

RECORD_BYTES = 512
#: Messages of at most so many bytes are stored within their record.
INLINE_BYTES = 192

#: Ends with the version of the protocol.
_MAGIC = b"fgr2"
_HEAD = struct.Struct("<4sBqqiH")
_TEXT_BYTES = RECORD_BYTES - INLINE_BYTES - _HEAD.size
_KINDS = ("call", "ended", "failed")


@dataclass(frozen=True)
class Record:
    """A header sent from one rank to another.

    Attributes
    ----------
    kind : str
        "call"; "ended": the rank has ended; "failed": `rank` has failed.
    number : int
        Number of its exchanges, this one included.
    text, about, given : str
        Of a call: see `Call`. Of a failure, `text` is the reason.
    rank : int
        The rank that failed first, else -1.
    nbytes : int
        Bytes of the message with this record.
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
        """The call of this record."""
        return Call(self.number, self.text, self.about, self.given)


def called(call: Call) -> Record:
    """Return the record of a call."""
    return Record("call", call.number, call.text, call.about, given=call.given)


def pack(record: Record, message: Bytes) -> Bytes:
    """Return a record as bytes, with the message if it is short."""
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
    """Return the record of a rank, and its message if that is stored in the record.

    Raises DistributedError if the bytes are no record.
    """
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
