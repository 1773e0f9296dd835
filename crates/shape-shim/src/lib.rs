//! The shim: preloaded into an unmodified server, it sees the bytes of each TCP connection as the server reads and writes them.
//! It lets the reading thread wait where the gate orders it (AP-M1).
//!
//! Its rules, as it runs in another program's process: no allocation and no lock held across a call other than waking. System
//! calls are made directly, never through the next library's symbol (only `SSL_*` are looked up, once, at the start). No panic
//! leaves it: one switches it off and releases all waiting connections. `errno` is as the call left it. A process that it
//! doesn't serve (no segment named, or a forked helper) is passed through. All it changes of the gate it changes under the
//! segment's lock.
//!
//! `hooks` are the C faces, `engine` decides, `table` has the state of each file descriptor, `epoll` has the faces of event
//! loops.

mod engine;
mod epoll;
mod hooks;
mod ssl;
mod start;
mod sys;
mod table;
