//! The node's control API.

use super::HANG;
use super::common::http::{self, Answer};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The node that serves from this folder.
#[derive(Clone)]
pub struct Node {
    pub dir: PathBuf,
}

impl Node {
    pub fn socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    fn control_socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    pub fn answer(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        http::unix(&self.control_socket(), method, path, body)
    }

    /// Orders something in the middle of which the node may be killed: true if the node answered that it is done.
    pub fn order(&self, method: &str, path: &str) -> impl FnOnce() -> bool + Send + 'static {
        let (socket, method, path) = (self.control_socket(), method.to_string(), path.to_string());
        move || http::try_unix(&socket, &method, &path, None).is_ok_and(|answer| answer.code == 200)
    }

    /// Asks a question.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        self.asked("GET", path, None)
    }

    /// Orders what may be refused for the reason `why` only: any other refusal is an error. True if it was done.
    pub fn unless(&self, why: &str, method: &str, path: &str, body: Option<Value>) -> Result<bool, String> {
        let answer = self.answer(method, path, body.as_ref());
        match answer.code {
            200..300 => Ok(true),
            400..500 if answer.body.contains(why) => Ok(false),
            code => Err(format!("{method} {path} {body:?}: {code} {}", answer.body)),
        }
    }

    /// Orders what can't be refused.
    pub fn must(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, String> {
        self.asked(method, path, body.as_ref())
    }

    fn asked(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let answer = self.answer(method, path, body);
        match answer.code {
            200..300 => Ok(serde_json::from_str(&answer.body).unwrap_or(Value::Null)),
            code => Err(format!("{method} {path} {body:?}: {code} {}", answer.body)),
        }
    }

    /// Waits until a pool is ready.
    pub fn await_ready(&self, pool: &str) -> Result<(), String> {
        self.await_pool(pool, |p| match p["state"].as_str() {
            Some("ready") => Some(true),
            Some("recovering") => Some(false),
            _ => None,
        })
    }

    /// Waits until no space of a pool is being zeroed.
    pub fn await_zeroed(&self, pool: &str) -> Result<(), String> {
        self.await_pool(pool, |p| Some(p["deleting"].as_array()?.is_empty()))
    }

    /// Waits until this is true of a pool. `None`: it can't become true.
    fn await_pool(&self, pool: &str, is: impl Fn(&Value) -> Option<bool>) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let status = self.get("/v1/status")?;
            let pools = status["pools"].as_array().ok_or("a status without pools")?;
            match pools.iter().find(|p| p["name"] == pool).and_then(&is) {
                Some(true) => return Ok(()),
                Some(false) if begun.elapsed() < HANG => std::thread::sleep(Duration::from_millis(10)),
                _ => return Err(format!("after its start pool {pool} isn't as it must be: {status}")),
            }
        }
    }
}
