//! Core allocation (QWin): the objective "p99.9 within 3 ms" becomes a number of cores, and who has no objective gets the rest.
//!
//! A *core* is a unit of service: it serves one request at a time to its end (or keeps `depth` in flight). What is promised: a
//! latency-critical queue has as many cores as its objectives need, by what its requests take now; a core is taken from
//! best-effort tenants only between two requests, from a latency-critical one never; when there are too few, who gets
//! how many is a matter of weights, not of luck. What isn't: that the device keeps its side. An objective that the
//! device alone breaks is shown as such.
//!
//! The path of a request: [`Cores`] puts it into its tenant's queue ([`queue`]); a [`policy`] says which queue a free core
//! serves next, here QWin's ([`policy::qwin`]): windows ([`window`]), the calculation ([`demand`]) from service times measured
//! as requests end ([`service`]). [`admission`] answers beforehand whether an objective fits.
//!
//! It knows no clock, thread or engine. QWin (Ma et al., ICPP 2021); decisions in `docs/papers/qwin.md`.
#![forbid(unsafe_code)]

pub mod admission;
pub mod bound;
pub mod config;
mod control;
pub mod demand;
pub mod layer;
pub mod policy;
pub mod queue;
pub mod service;
pub mod status;
pub mod window;

pub use admission::{Fit, Verdict, fit};
pub use config::{CoreRule, CoresConfig, Deadlines, PolicyConfig, QwinConfig};
pub use control::{Allotment, CoresControl, CoresReport, Missed};
pub use layer::Cores;
pub use status::{CoresStatus, QueueStatus};
pub use window::CorePolicy;
