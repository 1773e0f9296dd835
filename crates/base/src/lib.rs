//! The words every Plimsoll crate shares: instants and spans, requests and their outcomes, tenants and their
//! promises, buffers, seeded randomness and latency histograms.
//!
//! This crate knows nobody: no layer, no engine, no device, no clock.
#![forbid(unsafe_code)]

pub mod buf;
pub mod bytes;
pub mod hist;
pub mod io;
pub mod linear;
pub mod load;
pub mod rng;
pub mod tenant;
pub mod time;

pub use buf::{Buf, BufMut, BufPool};
pub use bytes::{bytes_text, parse_bytes};
pub use hist::LatencyHistogram;
pub use io::{
    Completion, Confidence, Data, Io, IoError, IoFlags, IoHead, IoId, IoParts, OfParent, Op, Origin, Outcome, OwnKind,
    StatusExtent, VolumeKey,
};
pub use load::LatencyByLoad;
pub use rng::Rng;
pub use tenant::{BadPriority, CacheMode, Class, Objective, OnBusy, Priority, PriorityClass, TenantId};
pub use time::{Span, Time};

/// The examples of README.md, which tests run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
