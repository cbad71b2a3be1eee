"""Protocol engines: messages in, messages out. They do no I/O and use no clock; none imports another."""
