"""What tests share: a real server in the test's own event loop, and clients that can misbehave."""
