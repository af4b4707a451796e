//! Attacker: a local user without groups or capabilities. It has the loopback of the machine and its file system.
