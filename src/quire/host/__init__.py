"""The process and the machine under it: cores, memory, signals, the collector of garbage. Both towers ask; nothing here knows of them."""
