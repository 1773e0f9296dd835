//! Tunes anything that a shell command can set and measure.
//!
//! Each command runs in a process group of its own. So its children end with it when it fails, hangs, or the tuner is stopped ([`Stop`]).

use crate::adapter::{Adapter, AdapterError, Run};
use crate::file::AdapterSpec;
use crate::otlp::otlp;
use crate::record::read_run;
use crate::source::{between, prometheus_buckets};
use crate::space::{Setting, Space};
use plimsoll_base::Span;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::io::{ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Runs an adapter's commands.
pub struct Shell {
    spec: AdapterSpec,
    space: Space,
    /// Setting that the commands of `measure` see.
    applied: Option<Setting>,
    stop: Stop,
}

/// Asks a [`Shell`] to stop: the command that runs, or the next one, ends with an error. Asked once, it ends one command, so that
/// the system can be put back by another.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<Asked>);

#[derive(Debug, Default)]
struct Asked {
    /// And no command has ended for it yet.
    is_open: AtomicBool,
    ever: AtomicBool,
}

impl Stop {
    /// Asks; false if an earlier asking hasn't ended anything yet.
    pub fn ask(&self) -> bool {
        self.0.ever.store(true, Ordering::Relaxed);
        !self.0.is_open.swap(true, Ordering::Relaxed)
    }

    /// Returns whether it was ever asked for.
    pub fn was_asked(&self) -> bool {
        self.0.ever.load(Ordering::Relaxed)
    }

    fn take(&self) -> Result<(), AdapterError> {
        match self.0.is_open.swap(false, Ordering::Relaxed) {
            true => Err(AdapterError("interrupted".into())),
            false => Ok(()),
        }
    }

    /// Waits, unless it's asked to stop.
    fn sleep(&self, time: Duration) -> Result<(), AdapterError> {
        let started = Instant::now();
        loop {
            self.take()?;
            let left = time.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

/// Limit of a command's output.
const OUTPUT_MAX: usize = 1 << 30;
/// Interval at which a running command is checked.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Silence after which the output of an ended command is complete: a server that it started may hold the output open for ever.
const DRAIN: Duration = Duration::from_millis(300);

impl Shell {
    /// Runs nothing yet.
    pub fn new(spec: AdapterSpec, space: Space) -> Shell {
        Shell { spec, space, applied: None, stop: Stop::default() }
    }

    /// Returns the handle that stops it.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    fn filled(&self, command: &str, setting: Option<&Setting>, time: Span) -> String {
        let seconds = time.as_nanos() as f64 / 1e9;
        let mut text = command.replace("{seconds}", &seconds.to_string());
        if let Some(s) = setting {
            for (name, value) in self.space.values(s) {
                text = text.replace(&format!("{{{name}}}"), &quoted(value));
            }
        }
        text
    }

    fn measure_histograms(&self, time: Span) -> Result<Run, AdapterError> {
        let p = self.spec.prometheus.as_ref().expect("a spec has one of the two");
        let told = |e: crate::record::BadRecord| AdapterError(format!("`{}`: {e}", p.command));
        let scrape = || run(&p.command, limit(self.spec.timeout), &self.stop);
        let before = scrape()?;
        self.stop.sleep(limit(time))?;
        let after = scrape()?;
        let mut measured = Run::new();
        for (node, h) in &p.node {
            let labels: Vec<(&str, &str)> = h.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let read = |text: &str| prometheus_buckets(text, &h.metric, &labels);
            // A series may begin with its first request: it was empty before.
            let earlier = read(&before).unwrap_or_default();
            let observations = between(&earlier, &read(&after).map_err(told)?).map_err(told)?;
            measured.insert(node.clone(), observations);
        }
        Ok(measured)
    }
}

impl Adapter for Shell {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        let command = self.filled(&self.spec.apply, Some(setting), Span::ZERO);
        run(&command, limit(self.spec.timeout), &self.stop)?;
        self.applied = Some(setting.clone());
        Ok(())
    }

    /// The command's output is `request,node,value` lines, or an OTLP/JSON export (it begins with a brace).
    fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        let Some(measure) = &self.spec.measure else { return self.measure_histograms(time) };
        let command = self.filled(measure, self.applied.as_ref(), time);
        let text = run(&command, limit(self.spec.timeout + time), &self.stop)?;
        let is_node = |name: &str| self.spec.nodes.contains(name);
        let read = if text.trim_start().starts_with('{') { otlp(&text, &is_node) } else { read_run(&text) };
        read.map_err(|e| AdapterError(format!("`{command}`: {e}")))
    }
}

fn limit(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

/// One word for a shell, whatever is in it.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-+:/=,".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        value.into()
    } else {
        format!("'{}'", value.replace('\'', "'\\''"))
    }
}

/// Runs a command to its end and returns what it printed. Unless it ends well, it's ended with all that it started.
fn run(command: &str, limit: Duration, stop: &Stop) -> Result<String, AdapterError> {
    let failed = |what: String| AdapterError(format!("`{command}`: {what}"));
    stop.take().map_err(|e| failed(e.0))?;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = shell.spawn().map_err(|e| failed(e.to_string()))?;
    let out = Collected::of(child.stdout.take().expect("piped"));
    let err = Collected::of(child.stderr.take().expect("piped"));
    let ended = wait(&child, limit, stop);
    if ended != Ok(Some(0)) {
        end(&child);
    }
    // Reaped only now: until then nobody else can have the group's number.
    child.wait().map_err(|e| failed(e.to_string()))?;
    let status = ended.map_err(failed)?;
    if status != Some(0) {
        let how = status.map_or("it was killed".to_string(), |c| format!("it failed with status {c}"));
        let said = String::from_utf8_lossy(&err.drained().0).trim().to_string();
        return Err(failed(if said.is_empty() { how } else { format!("{how}: {said}") }));
    }
    let (printed, is_cut) = out.drained();
    if is_cut {
        return Err(failed(format!("it printed more than {OUTPUT_MAX} bytes: measure for a shorter time")));
    }
    String::from_utf8(printed).map_err(|_| failed("it printed what isn't text".into()))
}

/// Waits for a command without reaping it: its status, `None` if it was killed.
fn wait(child: &Child, limit: Duration, stop: &Stop) -> Result<Option<i32>, String> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let started = Instant::now();
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), options).map_err(|e| e.to_string())? {
            Some(status) => return Ok(status.exit_status()),
            None if started.elapsed() >= limit => {
                return Err(format!("it hangs: stopped after {limit:?} (adapter.timeout)"));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
        stop.take().map_err(|e| e.0)?;
    }
}

/// Kills the command and all that it started.
fn end(child: &Child) {
    // They may have ended meanwhile: then there is nothing to kill.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Output of a stream so far, collected by a thread of its own.
struct Collected(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    bytes: Vec<u8>,
    is_over: bool,
    is_cut: bool,
}

impl Collected {
    fn of(mut stream: impl Read + Send + 'static) -> Collected {
        let said = Arc::new(Mutex::new(Said::default()));
        let writer = said.clone();
        std::thread::spawn(move || {
            let mut part = vec![0; 1 << 16];
            loop {
                let n = match stream.read(&mut part) {
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    // A stream that breaks has said all.
                    read => read.unwrap_or(0),
                };
                let mut said = writer.lock().expect("no panic while held");
                let room = OUTPUT_MAX - said.bytes.len();
                said.bytes.extend_from_slice(&part[..n.min(room)]);
                said.is_cut |= n > room;
                if n == 0 || said.is_cut {
                    said.is_over = true;
                    return;
                }
            }
        });
        Collected(said)
    }

    /// Returns the whole output of an ended command, and whether it exceeded the limit.
    fn drained(self) -> (Vec<u8>, bool) {
        let (mut len, mut since) = (0, Instant::now());
        loop {
            let mut said = self.0.lock().expect("no panic while held");
            if said.bytes.len() > len {
                (len, since) = (said.bytes.len(), Instant::now());
            }
            if said.is_over || since.elapsed() >= DRAIN {
                return (std::mem::take(&mut said.bytes), said.is_cut);
            }
            drop(said);
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    fn shell(apply: &str, measure: &str) -> Shell {
        shell_within(Span::from_secs(30), apply, measure)
    }

    fn shell_within(timeout: Span, apply: &str, measure: &str) -> Shell {
        let values = vec!["1".into(), "it's 2; exit 3".into()];
        let space = Space::new(vec![Parameter { name: "a".into(), values, moves: vec![] }]).unwrap();
        let spec = AdapterSpec {
            apply: apply.into(),
            measure: Some(measure.into()),
            prometheus: None,
            timeout,
            profile_time: Span::from_secs(1),
            warm: Span::ZERO,
            nodes: ["r".to_string()].into(),
        };
        Shell::new(spec, space)
    }

    #[test]
    fn commands_get_their_values_and_give_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("set");
        let mut s = shell(&format!("printf %s {{a}} > {}", file.display()), "echo 1,r,{seconds}");
        s.apply(&Setting(vec![1])).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "it's 2; exit 3", "a value is one word");
        assert_eq!(s.measure(Span::from_millis(1500)).unwrap()["r"][0].value, 1.5);
    }

    #[test]
    fn failures_and_hangs_are_told() {
        let told = |apply: &str| shell(apply, "true").apply(&Setting(vec![0])).unwrap_err().to_string();
        assert!(told("echo no disk >&2; exit 3 # {a}").contains("failed with status 3: no disk"));
        assert!(told("kill -9 $$ # {a}").contains("it was killed"));
        let started = Instant::now();
        let mut hanging = shell_within(Span::from_millis(700), "sleep 60 & sleep 60 # {a}", "true");
        let hang = hanging.apply(&Setting(vec![0])).unwrap_err().to_string();
        assert!(hang.contains("it hangs: stopped after 700ms"), "{hang}");
        assert!(started.elapsed() < Duration::from_secs(30));
        // A server that stays and keeps the output open is no hang, and what was printed isn't lost.
        assert!(shell("sleep 3 & # {a}", "true").apply(&Setting(vec![0])).is_ok());
        let run = shell("true", "echo 1,r,2.5; sleep 3 &").measure(Span::ZERO).unwrap();
        assert_eq!(run["r"][0].value, 2.5);
        let e = shell("true", "echo nothing").measure(Span::ZERO).unwrap_err().to_string();
        assert!(e.contains("line 1: `nothing` isn't"), "{e}");
    }

    /// True if this process runs.
    fn runs(pid_file: &std::path::Path) -> bool {
        let pid = std::fs::read_to_string(pid_file).unwrap();
        let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        !(status.is_empty() || status.contains(") Z"))
    }

    fn ends(pid_file: &std::path::Path) -> bool {
        let started = Instant::now();
        while runs(pid_file) && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        !runs(pid_file)
    }

    #[test]
    fn what_a_command_started_ends_when_it_fails_or_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let starts = format!("sleep 100 & echo $! > {}", pid.display());
        assert!(shell(&format!("{starts}; exit 3"), "true").apply(&Setting(vec![0])).is_err());
        assert!(ends(&pid), "what a failing command started goes on");
        std::fs::remove_file(&pid).unwrap();
        let mut s = shell(&format!("{starts}; sleep 100"), "true");
        let stop = s.stop();
        let seen = pid.clone();
        let stopper = std::thread::spawn(move || {
            while !seen.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(stop.ask());
        });
        let e = s.apply(&Setting(vec![0])).unwrap_err().to_string();
        stopper.join().unwrap();
        assert!(e.contains("interrupted") && ends(&pid), "{e}");
        // One asking ends one command: the system can be put back.
        assert!(s.stop().was_asked() && s.measure(Span::ZERO).unwrap_err().to_string().contains("measured nothing"));
        s.stop().ask();
        assert!(!s.stop().ask());
        assert!(s.stop.sleep(Duration::from_secs(100)).unwrap_err().to_string().contains("interrupted"));
    }

    #[test]
    fn histograms_are_read_before_and_after() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("n");
        std::fs::write(&count, "0").unwrap();
        let script = format!(
            "n=$(($(cat {0}) + 50)); echo $n > {0}; echo \"x_bucket{{op=\\\"read\\\",le=\\\"0.01\\\"}} $n\"; echo \"x_bucket{{op=\\\"read\\\",le=\\\"+Inf\\\"}} $n\"",
            count.display()
        );
        let mut s = shell("true", "true");
        let histogram =
            crate::file::Histogram { metric: "x".into(), labels: [("op".to_string(), "read".to_string())].into() };
        s.spec.measure = None;
        s.spec.prometheus =
            Some(crate::file::Prometheus { command: script, node: [("r".to_string(), histogram)].into() });
        let run = s.measure(Span::from_millis(1)).unwrap();
        assert_eq!(run["r"].iter().map(|o| o.weight).sum::<f64>(), 50.0);
    }
}
