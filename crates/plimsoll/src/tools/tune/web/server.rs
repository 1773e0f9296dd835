//! The server.

use super::CONTROL;
use super::files::{self, Served};
use super::reply::Reply;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use plimsoll_base::Span;
use plimsoll_node::config::ByteSize;
use plimsoll_replay::gdsf::{Gdsf, SizeExponent};
use plimsoll_replay::real_disk::RealDisk;
use plimsoll_replay::workload::web::{CACHED_BYTES_MAX, WINDOWS_AHEAD, chunk_at, next_window};
use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};

/// Serve files over HTTP at a modelled disk's speed: a system to tune
#[derive(Args)]
#[command(
    after_help = "GET /NAME is a file, GET /-/files lists them, POST /-/set?idle_time=8ms&size_exponent=0.5 sets the disk scheduler's \
    idle time and how a file's size counts in the cache, GET /-/times gives (once) how long each part of each request took, as \
    `request,node,value` lines.\n\nExample:\n  plimsoll tune web-server --root www --make 2000 --cache 32MiB"
)]
pub struct WebServer {
    /// The folder.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Write N files first, of a web server's sizes; the folder must be new or empty.
    #[arg(long, value_name = "N")]
    make: Option<usize>,
    /// The largest of them.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", requires = "make")]
    largest: ByteSize,
    /// Address to listen on; port 0 takes a free one. Use loopback: clients may also change settings.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8099")]
    listen: SocketAddr,
    /// The modelled disk.
    #[arg(long, value_name = "PROFILE", default_value = "hdd-160g-7200")]
    disk: String,
    /// Memory of the cache.
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    cache: ByteSize,
    /// Requests served at once; each is a process to the disk's scheduler.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Varies where files lie, and how the disk differs from its profile.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Times kept for who asks; more are forgotten.
const TIMES_MAX: usize = 4 << 20;

/// State that requests share.
struct Shared {
    files: Vec<Served>,
    by_name: BTreeMap<String, u32>,
    disk: RealDisk,
    /// Free numbers of workers, one for each permit.
    workers: Semaphore,
    state: Mutex<State>,
    next_request: AtomicU64,
}

struct State {
    cache: Gdsf,
    bodies: BTreeMap<u32, Bytes>,
    free: Vec<u16>,
    times: Vec<(u64, &'static str, f64)>,
}

impl WebServer {
    /// Serves until it's ended.
    pub fn run(&self) -> Result<()> {
        if let Some(count) = self.make {
            files::make(&self.root, count, self.largest.0, self.seed)?;
        }
        let disk = RealDisk::start(&self.disk, Span::from_millis(8), self.seed).map_err(|e| anyhow!(e))?;
        let files = files::open(&self.root, disk.size_bytes(), self.seed)?;
        let by_name = files.iter().enumerate().map(|(i, f)| (f.name.clone(), i as u32)).collect();
        let state = State {
            cache: Gdsf::new(self.cache.0, CACHED_BYTES_MAX, SizeExponent(1.0)),
            bodies: BTreeMap::new(),
            free: (0..self.threads).rev().collect(),
            times: Vec::new(),
        };
        let shared = Arc::new(Shared {
            files,
            by_name,
            disk,
            workers: Semaphore::new(usize::from(self.threads)),
            state: Mutex::new(state),
            next_request: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.serve(shared))
    }

    async fn serve(&self, shared: Arc<Shared>) -> Result<()> {
        let listener =
            TcpListener::bind(self.listen).await.with_context(|| format!("cannot listen on {}", self.listen))?;
        println!("serves {} files at http://{}", shared.files.len(), listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await.context("cannot take connections")?;
            let shared = shared.clone();
            let service = service_fn(move |request| {
                let shared = shared.clone();
                async move { Ok::<_, Infallible>(answer(shared, request).await) }
            });
            tokio::spawn(async move {
                // A client that breaks off is its own affair.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    }
}

fn text(status: StatusCode, text: String) -> Response<Reply> {
    let mut response = Response::new(Reply::new(Bytes::from(text), None));
    *response.status_mut() = status;
    response
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Reply> {
    let began = Instant::now();
    let path = request.uri().path();
    if let Some(what) = path.strip_prefix(CONTROL) {
        return match (request.method(), what) {
            (&Method::GET, "files") => text(StatusCode::OK, shared.list()),
            (&Method::GET, "times") => text(StatusCode::OK, shared.take_times()),
            (&Method::POST, "set") => match shared.set(request.uri().query().unwrap_or("")) {
                Ok(()) => text(StatusCode::OK, String::new()),
                Err(what) => text(StatusCode::BAD_REQUEST, what),
            },
            _ => text(StatusCode::NOT_FOUND, "there are files, times and set here\n".into()),
        };
    }
    match shared.by_name.get(path.trim_start_matches('/')) {
        Some(&file) if request.method() == Method::GET => match shared.clone().get(file, began).await {
            Ok(reply) => Response::new(reply),
            Err(e) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{e}\n")),
        },
        Some(_) => text(StatusCode::METHOD_NOT_ALLOWED, "files are only read\n".into()),
        None => text(StatusCode::NOT_FOUND, "there is no such file\n".into()),
    }
}

/// A worker, given back when its request has its data or is given up.
struct Worker<'a> {
    shared: &'a Shared,
    number: u16,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.shared.state().free.push(self.number);
        self.shared.workers.add_permits(1);
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic while held")
    }

    async fn worker(&self) -> Worker<'_> {
        self.workers.acquire().await.expect("never closed").forget();
        let number = self.state().free.pop().expect("a number for each permit");
        Worker { shared: self, number }
    }

    /// The four components of OpTune's Fig. 5.2; what each takes is recorded once the reply has been taken.
    async fn get(self: Arc<Shared>, file: u32, began: Instant) -> std::io::Result<Reply> {
        let worker = self.worker().await;
        let parsed = Instant::now();
        let cached = {
            let mut state = self.state();
            if state.cache.hit(file) { state.bodies.get(&file).cloned() } else { None }
        };
        let is_hit = cached.is_some();
        let bytes = match cached {
            Some(bytes) => bytes,
            None => self.read(file, worker.number).await?,
        };
        drop(worker);
        let (got, number) = (Instant::now(), self.next_request.fetch_add(1, Ordering::Relaxed));
        let shared = self.clone();
        let over = move || {
            let now = Instant::now();
            let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
            let times = [
                (number, "parse", ms(began, parsed)),
                (number, "get", f64::from(u8::from(!is_hit))),
                (number, if is_hit { "cache" } else { "disk" }, ms(parsed, got)),
                (number, "reply", ms(got, now)),
                (number, "request", ms(began, now)),
            ];
            let mut state = shared.state();
            if state.times.len() < TIMES_MAX {
                state.times.extend(times);
            }
        };
        Ok(Reply::new(bytes, Some(Box::new(over))))
    }

    /// A file from the disk, window after window as the kernel reads ahead; it's kept in the cache if that wants it.
    async fn read(&self, file: u32, worker: u16) -> std::io::Result<Bytes> {
        let f = &self.files[file as usize];
        let mut bytes = vec![0; f.bytes as usize];
        let (mut done, mut asked, mut window, mut ahead) = (0, 0, 0, 1);
        let mut under_way: VecDeque<(u64, oneshot::Receiver<()>)> = VecDeque::new();
        while done < f.bytes {
            while under_way.len() < ahead && asked < f.bytes {
                window = next_window(window, f.bytes - asked);
                let (sender, ended) = oneshot::channel();
                let offset = chunk_at(f.offset, asked, self.disk.size_bytes());
                self.disk.read(worker, offset, window.next_multiple_of(4096), move || {
                    let _ = sender.send(()); // a request that was given up doesn't hear
                });
                under_way.push_back((window, ended));
                asked += window;
            }
            let (len, ended) = under_way.pop_front().expect("something is under way until all is done");
            ended.await.map_err(|_| std::io::Error::other("the disk's thread has ended"))?;
            f.file.read_exact_at(&mut bytes[done as usize..(done + len) as usize], done)?;
            (done, ahead) = (done + len, WINDOWS_AHEAD);
        }
        let bytes = Bytes::from(bytes);
        let mut guard = self.state();
        let State { cache, bodies, .. } = &mut *guard;
        if cache.insert_evicting(file, f.bytes, &mut |gone| drop(bodies.remove(&gone))) {
            bodies.insert(file, bytes.clone());
        }
        Ok(bytes)
    }

    fn list(&self) -> String {
        self.files.iter().fold(String::new(), |mut all, f| {
            let _ = writeln!(all, "{},{}", f.name, f.bytes); // a string takes everything
            all
        })
    }

    fn take_times(&self) -> String {
        let times = std::mem::take(&mut self.state().times);
        times.iter().fold(String::from("request,node,value\n"), |mut all, (request, node, value)| {
            let _ = writeln!(all, "{request},{node},{value:.6}"); // likewise
            all
        })
    }

    /// All of it, or nothing.
    fn set(&self, query: &str) -> Result<(), String> {
        let (mut idle, mut exponent) = (None, None);
        for pair in query.split('&').filter(|p| !p.is_empty()) {
            match pair.split_once('=') {
                Some(("idle_time", t)) => idle = Some(t.parse::<Span>().map_err(|e| format!("idle_time: {e}\n"))?),
                Some(("size_exponent", x)) => {
                    let x = x.parse::<f64>().ok().filter(|x| (0.0..=4.0).contains(x));
                    exponent = Some(x.ok_or("size_exponent: a number from 0 to 4 is needed\n")?);
                }
                _ => return Err(format!("`{pair}`: idle_time=TIME and size_exponent=X can be set\n")),
            }
        }
        if let Some(idle) = idle {
            self.disk.set_idle_time(idle);
        }
        if let Some(x) = exponent {
            self.state().cache.set_exponent(SizeExponent(x));
        }
        Ok(())
    }
}
