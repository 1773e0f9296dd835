//! The server's load, and what sets it.

use super::CONTROL;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use plimsoll_base::{Rng, Span};
use plimsoll_replay::workload::web::Ranks;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Load a web server, and print the time of each part (`measure`)
#[derive(Args)]
#[command(
    after_help = "Requests come as a Poisson process; files by Zipf's law, the first that the server lists most often. What is printed is \
    what the server recorded (/-/times) while it was asked.\n\nExample:\n  plimsoll tune web-load 127.0.0.1:8099 --gap 40ms --seconds 30"
)]
pub struct WebLoad {
    /// The server: HOST:PORT, as `plimsoll tune web-server` prints it.
    server: String,
    /// Mean time between two requests.
    #[arg(long, value_name = "TIME", default_value = "72ms")]
    gap: Span,
    /// Seconds of load.
    #[arg(long, value_name = "S")]
    seconds: f64,
    /// Exponent of the files' popularity.
    #[arg(long, value_name = "X", default_value_t = 0.9)]
    zipf: f64,
    /// Seed of the requests [default: drawn].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Requests under way at most: a server that can't keep up is overloaded, and more would only say so again.
const UNDER_WAY_MAX: usize = 4096;
/// Time limit for requests that are in flight at the end.
const END_TIME: Duration = Duration::from_secs(60);

impl WebLoad {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        if self.gap == Span::ZERO || !(self.seconds > 0.0 && self.seconds < 1e6) {
            bail!("--gap and --seconds must be above zero");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let times = runtime.block_on(self.load())?;
        print!("{times}");
        Ok(())
    }

    async fn load(&self) -> Result<String> {
        let server = address(&self.server);
        let files = get(&server, &format!("{CONTROL}files")).await?;
        let files: Vec<Arc<str>> = files.lines().filter_map(|l| Some(l.split_once(',')?.0.into())).collect();
        if files.is_empty() {
            bail!("{server}: lists no files");
        }
        get(&server, &format!("{CONTROL}times")).await?; // what came before is nobody's
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let mut rng = Rng::new(self.seed.unwrap_or(now), "web load");
        let popularity = Ranks::new(files.len(), self.zipf);
        let (began, mut due, mut under_way) = (Instant::now(), 0.0, JoinSet::new());
        loop {
            due += rng.exp1() * self.gap.as_secs_f64();
            if due > self.seconds {
                break;
            }
            tokio::time::sleep_until((began + Duration::from_secs_f64(due)).into()).await;
            while let Some(ended) = under_way.try_join_next() {
                ended??;
            }
            if under_way.len() >= UNDER_WAY_MAX {
                bail!("{server}: {UNDER_WAY_MAX} requests wait for it: it can't keep up with one every {}", self.gap);
            }
            let (server, file) = (server.clone(), files[popularity.draw(&mut rng)].clone());
            under_way.spawn(async move { fetch(&server, Method::GET, &format!("/{file}")).await.map(drop) });
        }
        tokio::time::sleep_until((began + Duration::from_secs_f64(self.seconds)).into()).await;
        let rest = async {
            while let Some(ended) = under_way.join_next().await {
                ended??;
            }
            Ok::<_, anyhow::Error>(())
        };
        let ended = tokio::time::timeout(END_TIME, rest).await;
        ended.map_err(|_| anyhow!("{server}: requests take longer than {END_TIME:?}"))??;
        get(&server, &format!("{CONTROL}times")).await
    }
}

/// Change settings of a web server (`apply`)
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll tune web-set 127.0.0.1:8099 --idle-time 16ms --size-exponent 0.5")]
pub struct WebSet {
    /// The server: HOST:PORT, as `plimsoll tune web-server` prints it.
    server: String,
    /// Time that the disk's scheduler keeps the disk for a request's next read.
    #[arg(long, value_name = "TIME", required_unless_present = "size_exponent")]
    idle_time: Option<Span>,
    /// A file's bytes to this power are its Size(f) in the cache.
    #[arg(long, value_name = "X")]
    size_exponent: Option<f64>,
}

impl WebSet {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let mut query = Vec::new();
        query.extend(self.idle_time.map(|t| format!("idle_time={}ns", t.as_nanos())));
        query.extend(self.size_exponent.map(|x| format!("size_exponent={x}")));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let path = format!("{CONTROL}set?{}", query.join("&"));
        runtime.block_on(fetch(&address(&self.server), Method::POST, &path)).map(drop)
    }
}

fn address(server: &str) -> Arc<str> {
    server.trim_start_matches("http://").trim_end_matches('/').into()
}

async fn get(server: &str, path: &str) -> Result<String> {
    let body = fetch(server, Method::GET, path).await?;
    String::from_utf8(body.into()).with_context(|| format!("{server}{path}: isn't text"))
}

/// One request on a connection of its own.
async fn fetch(server: &str, method: Method, path: &str) -> Result<Bytes> {
    let about = || format!("{server}{path}");
    let stream = TcpStream::connect(server).await.with_context(about)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.with_context(about)?;
    let driver = tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(header::HOST, server);
    let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await.with_context(about)?;
    let status = answer.status();
    let body = answer.into_body().collect().await.with_context(about)?.to_bytes();
    driver.abort();
    if status != StatusCode::OK {
        bail!("{}: {status}: {}", about(), String::from_utf8_lossy(&body).trim());
    }
    Ok(body)
}
