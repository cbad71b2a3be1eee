"""Protocol engines: messages in, messages out. They do no I/O and know no clock; none imports another."""
