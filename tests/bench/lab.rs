//! The surroundings of a measurement: two network namespaces, a link between them, a web server in
//! one and whatever is measured in the other. Nothing in them reaches any other network.
//!
//! ```text
//!   server's namespace                        device's namespace
//!   nginx ── 10.0.0.1 ══ rate, queue, delay ══ 10.0.0.2 ── reflash, curl
//! ```
//!
//! The link is netem where the kernel has it, else the delay line in `link/`. Either way it carries
//! Ethernet frames that are segmented as on a wire, with real TCP on both sides.
//!
//! All is gone when a [`Lab`] is dropped. What a killed run left behind is removed by the next.

use std::fs;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Bytes a second each way, frames with their Ethernet header.
pub(crate) const RATE: u64 = 20 << 20;

/// Bytes that may wait before the link; 50 ms of its rate.
pub(crate) const QUEUE: u64 = 1 << 20;

/// Names of namespaces and of the folder begin so, then comes the process that made them.
const PREFIX: &str = "reflash-bench-";

const SERVER: &str = "10.0.0.1";
const DEVICE: &str = "10.0.0.2";
const MAC: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
const INTERFACE: &str = "wire";

/// What differs from a machine's usual settings, in both namespaces: no memory of earlier
/// connections, and the congestion control that most machines have.
const SYSCTL: [(&str, &str); 3] = [
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/tcp_congestion_control", "cubic"),
    ("ipv6/conf/all/disable_ipv6", "1"),
];

/// How the link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Netem,
    Line,
}

/// Why nothing can be measured here, if so.
pub(crate) fn unavailable() -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        return Some("it makes network namespaces, and only root may".to_owned());
    }
    for (program, argument) in [("ip", "-V"), ("nginx", "-v"), ("curl", "--version")] {
        if quiet(Command::new(program).arg(argument)).is_err() {
            return Some(format!("there is no {program}"));
        }
    }
    let name = format!("{PREFIX}{}-probe", std::process::id());
    if let Err(reason) = ip(&format!("netns add {name}")) {
        return Some(format!("no network namespace can be made: {reason}"));
    }
    let removed = ip(&format!("netns del {name}"));
    if let Err(reason) = removed {
        return Some(format!("a network namespace cannot be removed: {reason}"));
    }
    None
}

/// Why this kind of link cannot be had, if so.
fn refused(kind: Kind, line: &Path) -> Result<(), String> {
    match kind {
        Kind::Netem => {
            let name = format!("{PREFIX}{}-probe", std::process::id());
            ip(&format!("netns add {name}"))?;
            let probe = "qdisc add dev lo root netem delay 1ms".split(' ');
            let mut tc = Command::new("tc");
            let result = quiet(tc.args(["-n", &name]).args(probe));
            ip(&format!("netns del {name}"))?;
            result.map_err(|reason| format!("the kernel has no netem: {reason}"))
        }
        Kind::Line => {
            if !line.is_file() {
                return Err(format!("{} is not built; use make", line.display()));
            }
            let tun = fs::File::open("/dev/net/tun").map(drop);
            tun.map_err(|error| format!("there is no TAP device: {error}"))
        }
    }
}

/// The kind asked for, else the better one of those that can be had.
pub(crate) fn kind(asked: Option<Kind>, line: &Path) -> Result<Kind, String> {
    let kinds = match asked {
        Some(kind) => vec![kind],
        None => vec![Kind::Netem, Kind::Line],
    };
    let mut reasons = Vec::new();
    for kind in kinds {
        match refused(kind, line) {
            Ok(()) => return Ok(kind),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

/// A link that carries nothing but the benchmark.
#[derive(Debug)]
pub(crate) struct Lab {
    namespaces: [String; 2],
    folder: PathBuf,
    line: Option<Line>,
    nginx: Option<Child>,
    log_read: u64,
}

/// The delay line, while it runs.
#[derive(Debug)]
struct Line {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// What the server's log says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) requests: u64,
    pub(crate) connections: u64,
}

impl Lab {
    /// Brings all up.
    pub(crate) fn new(kind: Kind, line: &Path) -> Result<Self, String> {
        // In memory, so that no disk is measured.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        remove_leftovers(&parent)?;
        let name = |part| format!("{PREFIX}{}-{part}", std::process::id());
        let folder = parent.join(name("files"));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut lab = Self {
            namespaces: [name("server"), name("device")],
            folder,
            line: None,
            nginx: None,
            log_read: 0,
        };
        let [server, device] = lab.namespaces.clone();
        ip(&format!("netns add {server}"))?;
        ip(&format!("netns add {device}"))?;
        match kind {
            Kind::Netem => ip(&format!(
                "-n {server} link add {INTERFACE} type veth peer name {INTERFACE} netns {device}"
            ))?,
            Kind::Line => {
                lab.line = Some(Line::start(&server, line)?);
                let other = Line::OTHER;
                ip(&format!("-n {server} link set dev {other} netns {device}"))?;
                ip(&format!(
                    "-n {device} link set dev {other} name {INTERFACE}"
                ))?;
            }
        }
        for (side, (address, peer)) in [(SERVER, DEVICE), (DEVICE, SERVER)].iter().enumerate() {
            let (name, mac, other) = (&lab.namespaces[side], MAC[side], MAC[1 - side]);
            for (key, value) in SYSCTL {
                let write = format!("echo {value} > /proc/sys/net/{key}");
                // Not all kernels have all of them; the heading says what is in force.
                quiet(lab.inside(side, "sh").args(["-c", &write])).ok();
            }
            // Where frames could grow above the MTU: on a wire they do not.
            let whole = format!("-n {name} link set dev {INTERFACE} gso_max_segs 1");
            if kind == Kind::Netem {
                ip(&whole)?;
            }
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set dev {INTERFACE} address {mac}"))?;
            ip(&format!("-n {name} addr add {address}/24 dev {INTERFACE}"))?;
            // The queue is the link's own; this one must not drop anything.
            ip(&format!(
                "-n {name} link set dev {INTERFACE} txqueuelen 10000 up"
            ))?;
            ip(&format!(
                "-n {name} neigh replace {peer} lladdr {other} dev {INTERFACE} nud permanent"
            ))?;
            if kind == Kind::Netem {
                let rate = RATE * 8;
                let delay = format!("add dev {INTERFACE} root handle 1: netem limit 100000");
                tc(name, &delay)?;
                tc(name, &format!("add dev {INTERFACE} parent 1:1 handle 2: tbf rate {rate}bit burst 16kb limit {QUEUE}"))?;
            }
        }
        lab.serve()?;
        Ok(lab)
    }

    /// The real server, with its usual settings where the measurement does not need others.
    fn serve(&mut self) -> Result<(), String> {
        let folder = self.folder.display();
        let log = self.log_file();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {folder}/nginx-{name};\n"))
            .concat();
        let configuration = format!(
            "daemon off;\nuser root;\nworker_processes 1;\npid {folder}/nginx.pid;\n\
             error_log {folder}/error.log;\nevents {{}}\nhttp {{\n{temporary}\
             log_format connections '$connection $status $request_length $bytes_sent';\n\
             access_log {} connections;\nsendfile on;\ntcp_nopush on;\n\
             server {{ listen {SERVER}:80; root {folder}/www; }}\n}}\n",
            log.display()
        );
        let file = self.folder.join("nginx.conf");
        let failed = |error| format!("cannot set the server up: {error}");
        fs::create_dir_all(self.folder.join("www")).map_err(failed)?;
        fs::write(&file, configuration).map_err(failed)?;
        let errors = self.folder.join("error.log");
        let nginx = self
            .inside(0, "nginx")
            .arg("-c")
            .arg(&file)
            .arg("-e")
            .arg(&errors)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.nginx = Some(nginx.map_err(failed)?);
        let patience = Instant::now() + Duration::from_secs(5);
        let url = self.url("nothing");
        loop {
            let mut probe = self.device("curl");
            probe.args(["-q", "-s", "--noproxy", "*", "-o", "/dev/null", &url]);
            if quiet(&mut probe).is_ok() {
                self.served();
                return Ok(());
            }
            if Instant::now() > patience {
                let log = fs::read_to_string(&errors).unwrap_or_default();
                return Err(format!("the server does not answer: {log}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Adds a delay to the link, half of it each way.
    pub(crate) fn set_round_trip(&mut self, time: Duration) -> Result<(), String> {
        let half = (time / 2).as_micros();
        match &mut self.line {
            Some(line) => line.say(&format!("delay {half}")).map(drop),
            None => self.namespaces.iter().try_for_each(|name| {
                let delay = format!(
                    "change dev {INTERFACE} root handle 1: netem limit 100000 delay {half}us"
                );
                tc(name, &delay)
            }),
        }
    }

    /// A command in the device's namespace, without options or proxies from outside.
    pub(crate) fn device(&self, program: &str) -> Command {
        self.inside(1, program)
    }

    fn inside(&self, side: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces[side], program]);
        without_settings(&mut command);
        command
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{SERVER}/{name}")
    }

    /// Bytes that the device received and sent so far, Ethernet headers included.
    pub(crate) fn traffic(&self) -> Result<(u64, u64), String> {
        let name = &self.namespaces[1];
        let mut ip = Command::new("ip");
        ip.args(["-n", name, "-s", "-j", "link", "show", "dev", INTERFACE]);
        let text = output(&mut ip)?;
        let links: Value = serde_json::from_str(&text).map_err(|e| format!("ip: {e}"))?;
        let count = |way: &str| {
            let value = links.pointer(&format!("/0/stats64/{way}/bytes"));
            value
                .and_then(Value::as_u64)
                .ok_or_else(|| format!("ip does not count: {text}"))
        };
        Ok((count("rx")?, count("tx")?))
    }

    /// Frames that the link dropped, and those that it delivered late, since the last call, where
    /// it says so.
    pub(crate) fn lost(&mut self, round_trip: Duration) -> Result<Option<(u64, u64)>, String> {
        let Some(line) = &mut self.line else {
            return Ok(None);
        };
        let answer = line.say(&format!("delay {}", (round_trip / 2).as_micros()))?;
        let words: Vec<&str> = answer.split_whitespace().collect();
        match words[..] {
            ["frames", _, "dropped", dropped, "late", late] => {
                Ok(dropped.parse().ok().zip(late.parse().ok()))
            }
            _ => Err(format!("the delay line says {answer:?}")),
        }
    }

    /// What the server has logged since the last call.
    pub(crate) fn served(&mut self) -> Served {
        let text = fs::File::open(self.log_file()).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.log_read))?;
            std::io::read_to_string(file)
        });
        let text = text.unwrap_or_default();
        self.log_read += text.len() as u64;
        let mut connections: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        let requests = connections.len() as u64;
        connections.sort_unstable();
        connections.dedup();
        Served {
            requests,
            connections: connections.len() as u64,
        }
    }

    /// Where files may lie; the server serves what is in `www` there.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("access.log")
    }

    /// The congestion control of the server, which does the sending.
    pub(crate) fn congestion_control(&self) -> String {
        let mut cat = self.inside(0, "cat");
        let name = output(cat.arg("/proc/sys/net/ipv4/tcp_congestion_control"));
        name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut nginx) = self.nginx.take() {
            // Not killed outright, so that its worker ends with it.
            quiet(Command::new("kill").arg(nginx.id().to_string())).ok();
            nginx.wait().ok();
        }
        if let Some(line) = self.line.take() {
            let Line {
                mut child,
                commands,
                ..
            } = line;
            // The end of its input is its end.
            drop(commands);
            child.wait().ok();
        }
        for name in &self.namespaces {
            ip(&format!("netns del {name}")).ok();
        }
        fs::remove_dir_all(&self.folder).ok();
    }
}

impl Line {
    /// Name of its second device, which is to be moved.
    const OTHER: &'static str = "wire-other";

    fn start(namespace: &str, program: &Path) -> Result<Self, String> {
        let failed = |error| format!("cannot start the delay line: {error}");
        let mut child = Command::new("ip")
            .args(["netns", "exec", namespace])
            .arg(program)
            .args([INTERFACE, Self::OTHER])
            .args([RATE.to_string(), QUEUE.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (commands, answers) = child.stdin.take().zip(child.stdout.take()).ok_or("pipes")?;
        let mut line = Self {
            child,
            commands,
            answers: BufReader::new(answers),
        };
        match line.hear()?.as_str() {
            "up" => Ok(line),
            other => Err(format!("the delay line says {other:?}")),
        }
    }

    fn say(&mut self, command: &str) -> Result<String, String> {
        writeln!(self.commands, "{command}").map_err(|e| format!("the delay line: {e}"))?;
        self.hear()
    }

    fn hear(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        match self.answers.read_line(&mut answer) {
            Ok(0) => Err("the delay line ended".to_owned()),
            Ok(_) => Ok(answer.trim().to_owned()),
            Err(error) => Err(format!("the delay line: {error}")),
        }
    }
}

/// Removes namespaces and folders whose makers are gone, with what still runs in them.
fn remove_leftovers(parent: &Path) -> Result<(), String> {
    let orphan = |name: &str| {
        let maker = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split_once('-'));
        // That of a process that has ended but was not waited for is empty.
        let gone = |pid| fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |c| c.is_empty());
        maker.is_some_and(|(pid, _)| gone(pid))
    };
    let namespaces = output(Command::new("ip").args(["netns", "list"]))?;
    let names = namespaces.lines().filter_map(|line| line.split(' ').next());
    for name in names.filter(|name| orphan(name)) {
        for pid in output(Command::new("ip").args(["netns", "pids", name]))?.lines() {
            // It may have ended just now.
            quiet(Command::new("kill").arg(pid)).ok();
        }
        ip(&format!("netns del {name}"))?;
    }
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if orphan(&entry.file_name().to_string_lossy()) {
            // Nothing is measured with it.
            fs::remove_dir_all(entry.path()).ok();
        }
    }
    Ok(())
}

/// Takes options of the product and proxies out of a command's environment.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_lowercase();
        if text.starts_with("reflash_") || text.ends_with("_proxy") {
            command.env_remove(name);
        }
    }
}

fn ip(words: &str) -> Result<(), String> {
    quiet(Command::new("ip").args(words.split(' ')))
}

fn tc(namespace: &str, words: &str) -> Result<(), String> {
    let mut tc = Command::new("tc");
    quiet(tc.args(["-n", namespace, "qdisc"]).args(words.split(' ')))
}

/// Runs a command that has nothing to say but why it failed.
pub(crate) fn quiet(command: &mut Command) -> Result<(), String> {
    output(command).map(drop)
}

/// What a command says on standard output; if it fails, what it says on standard error.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot run {name}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{name}: {}, {}", output.status, said.trim()))
    }
}
