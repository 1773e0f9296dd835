//! Core allocation (QWin): the objective "p99.9 within 3 ms" becomes a number of cores, and tenants without an objective get
//! the rest.
//!
//! A *core* is a unit of service: it serves one request at a time to its end (or keeps `depth` in flight). The crate promises three
//! things. A latency-critical queue has the cores that its objectives need, by its requests' present service times. A core is
//! taken from best-effort tenants only between two requests, and never from a latency-critical one. When cores are too few,
//! weights decide each tenant's number, not luck. The crate doesn't promise the device's part: an objective that the device alone
//! breaks is shown as such.
//!
//! The path of a request: [`Cores`] puts it into its tenant's queue ([`queue`]). A [`policy`] decides which queue a free core
//! serves next, here QWin's ([`policy::qwin`]). QWin has windows ([`window`]) and a calculation of the demand ([`demand`]), from
//! service times measured as requests end ([`service`]). The module [`admission`] answers beforehand whether an objective fits.
//!
//! The crate has no clock, thread or engine. QWin is by Ma et al. (ICPP 2021); decisions are in `docs/papers/qwin.md`.
#![forbid(unsafe_code)]

pub mod admission;
pub mod bound;
pub mod config;
mod control;
pub mod demand;
pub mod layer;
pub mod line;
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
