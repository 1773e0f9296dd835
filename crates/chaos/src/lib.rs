//! Randomized tests of whole pools.
//!
//! A seed draws a [`Plan`]: which layers a pool has, how they are configured, on which devices, and which volumes and tenants there
//! are. [`Work`] draws what clients and the operator then do. The [`Oracle`] judges each answer and what is found after a restart.
//! All three are the same for both drivers:
//!
//! * [`sim`] runs the node's own stack (`plimsoll_node::open::build_stack`) over simulated disks that lose power.
//! * `crates/plimsoll/tests/chaos.rs` runs the built binary, over NBD and the control API, and kills it.
//!
//! `docs/chaos.md` says how to run them and how to repeat what they find.
#![forbid(unsafe_code)]

pub mod oracle;
pub mod plan;
pub mod sim;
pub mod work;

pub use oracle::{Asked, Oracle, UNIT};
pub use plan::{Lies, Plan};
pub use work::{End, Operation, Step, Work};
