//! The tuner (OpTune): settings chosen so that several points of a system's latency distribution are met at once.
//!
//! * [`graph`]: the service graph, what a request runs through; [`space`]: what can be set; [`file`]: both as TOML.
//! * [`profile`]: what was recorded of each node under which setting; [`record`], [`source`] and [`otlp`]: from files,
//!   histograms and traces.
//! * [`compose`]: the request's distribution from its parts', by sampling or by convolution; [`predict`]: of all settings.
//! * [`objective`]: what is wanted; [`solve`]: the mix of settings over a period that meets it best, and the proof.
//! * [`adapter`]: the one face of everything tunable; [`shell`]: by commands; [`screen`]: which parameter moves what;
//!   [`run`]: periods, watched, by the tests in [`stats`]; [`confirm`]: what is chosen, measured anew before it's believed.
//!
//! The crate promises: the same profile, objective and seed give the same answer; an answer says how far from the proven
//! bound it may be; whatever an adapter does, the system ends with the last setting that worked. It refuses to know any
//! tuned system, the simulator and the command line. Only [`shell`] starts processes and reads a clock.
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
