//! Orders that concern the whole process: `POST /v1/reload`, `POST /v1/drain`. The code that runs the node carries them out.

use super::api::{Draining, Reloaded};
use super::{ApiError, Shared};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// An order, with the place for its answer.
#[derive(Debug)]
pub enum Order {
    /// Read the configuration anew.
    Reload(oneshot::Sender<Result<crate::reload::Reloaded, String>>),
    /// End in order. The answer: the longest time that it takes.
    Drain(oneshot::Sender<Duration>),
}

/// The way of orders to whoever carries them out.
#[derive(Debug)]
pub struct Orders {
    to: mpsc::Sender<Order>,
    ending: AtomicBool,
}

impl Orders {
    /// A way, and its end.
    pub fn new() -> (Orders, mpsc::Receiver<Order>) {
        let (to, from) = mpsc::channel(1);
        (Orders { to, ending: AtomicBool::new(false) }, from)
    }

    /// The node is ending from now on.
    pub fn end(&self) {
        self.ending.store(true, Relaxed);
    }

    /// True if the node is ending.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Order) -> Result<T, ApiError> {
        let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the node is ending");
        let (reply, answer) = oneshot::channel();
        self.to.send(make(reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }
}

pub(super) async fn reload(State(control): Shared) -> Result<Json<Reloaded>, ApiError> {
    let done = control.orders.ask(Order::Reload).await?;
    let crate::reload::Reloaded { changed, restart, still_served, failed } =
        done.map_err(|what| ApiError::new(StatusCode::CONFLICT, what).todo("correct it; nothing was changed"))?;
    Ok(Json(Reloaded { changed, restart, still_served, failed }))
}

pub(super) async fn drain(State(control): Shared) -> Result<(StatusCode, Json<Draining>), ApiError> {
    let at_most = control.orders.ask(Order::Drain).await?;
    Ok((StatusCode::ACCEPTED, Json(Draining { at_most_us: at_most.as_micros() as u64 })))
}
