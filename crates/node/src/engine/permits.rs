//! Permits: the requests and bytes that a tenant may have in flight.
//!
//! Admission takes permits first. A connection without a permit isn't read from, so the client feels backpressure on its socket instead
//! of filling a queue here. A request holds its permit from before it enters the stack until its answer has been sent. So permits bound
//! the memory that is held for a tenant, whether or not its clients read their answers.
//!
//! A write too large for its connection's buffer is *announced* first. Room for its payload is kept beside the permits; such room is up
//! to half of the tenant's bytes. A client that announces a write and doesn't send it therefore keeps no permit from the tenant's other
//! clients. The write asks for its permit when all its bytes have come.
//!
//! A tenant's connections share its permits:
//!
//! * Requests in the stack never exceed the tenant's bound, whichever connections sent them.
//! * [`OWN`] is a number of requests and bytes that belongs to each connection. While answers wait to be sent, only the part that a
//!   connection holds beyond [`OWN`] counts against the tenant's bound. Payloads of up to [`OWN`]'s bytes need no room either. So
//!   clients that don't read, or announce and don't send, can't stop a connection that holds little.
//! * Waiting connections are admitted in the order of arrival. A connection that holds more than the tenant's permits divided by
//!   its active connections yields to those that hold less.
//! * A request that fits into its connection's own permits may pass others only while those wait for answers to be sent. It may not
//!   pass while they wait for the stack, or large requests would wait for ever.
//!
//! Tenants take turns.

mod admission;
mod held;
mod queue;
mod room;
mod tenant;
#[cfg(test)]
mod tests;

pub use admission::Admission;
pub use held::{Held, OWN, PermitLimits};
pub use queue::WaitsFor;
