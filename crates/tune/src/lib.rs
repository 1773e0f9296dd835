//! The tuner (OpTune): settings chosen so that several points of a system's latency distribution are met at once.
//!
//! * [`graph`]: the service graph, the course of a request; [`space`]: the parameters and their values; [`file`]: both as TOML.
//! * [`profile`]: observations of each node by setting; [`record`], [`source`] and [`otlp`]: from files, histograms and traces.
//! * [`compose`]: the request's distribution from its parts', by sampling or by convolution; [`predict`]: of all settings.
//! * [`objective`]: the goal and its bounds; [`solve`]: the mix of settings over a period that meets it best, and the proof.
//! * [`adapter`]: the one face of everything tunable; [`shell`]: by commands; [`screen`]: the effects of parameters.
//! * [`run`]: periods, watched, by the tests in [`stats`]; [`confirm`]: a choice, measured again before it is used.
//!
//! The crate makes three promises. The same profile, objective and seed give the same answer. An answer states its largest possible
//! distance from the proven bound. The system ends with the last setting that worked, even if an adapter fails.
//!
//! The crate doesn't know any tuned system, the simulator or the command line. Only [`shell`] starts processes and reads a clock.
//!
//! One run: `TuneFile` → [`space::Space::to_profile`] → [`adapter::profile`] → [`compose::Composer`] →
//! [`predict::candidates`] → [`solve::solve`] → [`run::Plan`] → [`run::period`], again and again.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod cdf;
pub mod compose;
pub mod confirm;
pub mod file;
pub mod graph;
pub mod objective;
pub mod otlp;
pub mod predict;
pub mod profile;
pub mod record;
pub mod run;
pub mod screen;
pub mod shell;
pub mod solve;
pub mod source;
pub mod space;
pub mod stats;
