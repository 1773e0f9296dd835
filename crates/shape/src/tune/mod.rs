//! What turns the knobs: P by a model that measurements verify and by what the storage forecasts, ζ by feedback, weights by objectives. All are pure machines that are
//! told what a window of time measured.

pub mod demand;
pub mod fairness;
pub mod model;
pub mod parallelism;
pub mod pressure;
pub mod pslo;
pub mod zeta;
