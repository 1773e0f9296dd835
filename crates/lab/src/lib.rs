//! The lab: the papers' experiments on modelled systems, and their reports.
//!
//! * [`experiment`] holds the experiments by the ids of our checklist, and runs them over seeds.
//! * [`system`] has the systems that the tuner is shown on, [`nitro`] the flash cache's traces and backends, [`database`] a
//!   database server, [`mlfs`] the file system on a modelled disk.
//! * [`report`] writes the HTML page; [`evidence`] keeps results in files, compares them with the list of known misses, and makes pages.
//!
//! Its program is `plimsoll-lab`; `plimsoll lab` starts it.
//!
//! The crate promises the same output for the same seed. It refuses to know the live engine and clocks; policies and models it
//! knows through the stack's contract. Only its program starts nodes, as processes (`mittos-live`).
#![forbid(unsafe_code)]

pub mod database;
pub mod evidence;
pub mod experiment;
pub mod mlfs;
pub mod nitro;
pub mod report;
pub mod system;
