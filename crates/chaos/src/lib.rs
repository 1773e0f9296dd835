//! Randomized tests of whole pools.
//!
//! A seed draws a [`Plan`]: the layers of a pool, their configuration and devices, and its volumes and tenants. [`Work`] draws
//! the requests of clients and the orders of an operator. The [`Oracle`] judges each answer, and the contents after a restart.
//! All three are the same for both drivers:
//!
//! * [`sim`] runs the node's own stack (`plimsoll_node::open::build_stack`) over simulated disks that lose power.
//! * `crates/plimsoll/tests/chaos.rs` runs the built binary, over NBD and the control API, and kills it.
//!
//! `docs/contributing/chaos.md` says how to run them and how to repeat what they find.
#![forbid(unsafe_code)]

pub mod oracle;
pub mod plan;
pub mod sim;
pub mod work;

pub use oracle::{Asked, Flag, Oracle, UNIT};
pub use plan::{Lies, Plan};
pub use work::{End, Fault, Operation, Step, Work};
