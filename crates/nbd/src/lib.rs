//! The NBD protocol without I/O: the server's and the client's side as machines that are fed bytes.
//!
//! **Promises.** Nothing that a peer sends causes a panic. Every buffer that a peer fills has a bound and grows only as its
//! bytes arrive. The same bytes give the same result however they are cut. Nothing is copied or allocated for a request's
//! payload. A client never sees an extension that it did not negotiate.
//!
//! **Refuses to know.** Sockets, TLS, clocks, threads, volumes, tenants. The driver interprets an export's name and the promise
//! in it: it gets the name as the client sent it.
//!
//! **The path of one connection.** [`handshake::ServerHandshake`] greets and answers options. It asks its driver through
//! [`handshake::Event`]s for the list of exports, for one export, or for TLS. It ends with [`handshake::Event::Transmission`],
//! whose [`handshake::Negotiated`] gives the connection's [`request::Rules`] and [`reply::Replies`]. From then on the driver
//! reads 28 bytes at a time (and the payload of a WRITE). [`request::Rules::judge`] decides about the request, and [`reply`]
//! writes the headers of answers. [`client::ClientHandshake`] and [`transactions::Transactions`] are the other end of the same
//! wire.
//!
//! The source is `NBD proto.md`, the protocol's public specification.
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

/// The examples of README.md, which tests run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
