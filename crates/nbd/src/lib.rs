//! The NBD protocol without I/O: what a server and a client say to each other, as machines that are fed bytes.
//!
//! **Promises.** No panic on anything a peer sends; every buffer that a peer fills has a bound and grows only as
//! its bytes arrive; the same bytes give the same result however they are cut; nothing is copied or allocated
//! for a request's payload. A client never sees a word it did not negotiate.
//!
//! **Refuses to know.** Sockets, TLS, clocks, threads, volumes, tenants. What an export's name means, and what
//! promise it carries, is its driver's business: it gets the name as the client sent it.
//!
//! **The path of one connection.** [`handshake::ServerHandshake`] greets, answers options, and asks its driver
//! through [`handshake::Event`]s: which exports are there, what is this one, upgrade to TLS. It ends with
//! [`handshake::Event::Transmission`], whose [`handshake::Negotiated`] gives the connection's
//! [`request::Rules`] and [`reply::Replies`]. From then on the driver reads 28 bytes at a time (and the payload
//! of a WRITE), [`request::Rules::judge`] says what they are worth, and [`reply`] writes the headers of what is
//! answered. [`client::ClientHandshake`] and [`transactions::Transactions`] are the other end of the same wire.
//!
//! Everything is said after `NBD proto.md`, the protocol's public specification.
#![forbid(unsafe_code)]

pub mod client;
mod coverage;
mod cursor;
mod event;
pub mod export;
pub mod handshake;
mod option;
mod outbox;
pub mod promise;
pub mod reply;
pub mod request;
pub mod transactions;
pub mod wire;
