# The compiled map has the signatures of the plain one.
from dovetail.log.compaction.key_map import PlainKeyMap as KeyMap

__all__ = ["KeyMap"]
