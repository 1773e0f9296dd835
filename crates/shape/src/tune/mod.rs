//! Controllers of the settings: P by a model that measurements verify and by the storage's forecast, ζ by feedback, weights by
//! objectives. All are pure machines; their inputs are the measurements of a window of time.

pub mod demand;
pub mod fairness;
pub mod model;
pub mod parallelism;
pub mod pressure;
pub mod pslo;
pub mod zeta;
