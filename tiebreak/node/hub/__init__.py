"""The hub: a mailbox for posts and a library of blobs, over HTTP. Trusted by nobody."""
