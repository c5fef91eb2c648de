//! What every test here needs: processes of `ordain`, a client of its protocol, an HTTP request, seeded numbers.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

pub use ordain_fuzz::Random;
use ordain_resp::client::ReplyReader;
pub use ordain_resp::client::{Reply, command};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Long enough for a slow machine under load; only a hang is longer.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// `ordain` with these arguments, with nothing of the environment that configures it.
pub fn ordain<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_ordain")), args)
}

/// `command` with these arguments, with nothing of the environment that configures `ordain`.
pub fn clean<A: AsRef<OsStr>>(mut command: Command, args: impl IntoIterator<Item = A>) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ORDAIN_") {
            command.env_remove(name);
        }
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// `ordain serve` on ports of the system's choice, and these arguments.
pub fn serve<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = ordain(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(args);
    command
}

/// `ordain serve` on a data directory, and these arguments.
pub fn serve_dir<A: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = A>) -> Command {
    let mut command = serve([OsStr::new("--data-dir"), dir.as_os_str()]);
    command.args(args);
    command
}

/// The first of some ports in a row for processes that are told where to listen. They are below those that systems commonly
/// give to whoever asks for any: between now and then, and while a node is down, nobody else gets them.
pub fn ports(count: u16) -> u16 {
    const PORTS: std::ops::Range<u32> = 10_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        // Other processes that run these tests begin elsewhere.
        let next =
            std::process::id().wrapping_mul(997) % 20_000 + NEXT.fetch_add(count.into(), Ordering::Relaxed);
        let first = (PORTS.start + next % (PORTS.end - PORTS.start - u32::from(count))) as u16;
        if (first..first + count).all(is_free) {
            return first;
        }
    }
}

/// A process, its lines on stdout as they come, and its stderr. Killed when dropped.
pub struct Process {
    child: Child,
    lines: Receiver<String>,
    stderr: File,
}

/// How a process ended, and all that it said.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: Vec<String>,
    pub stderr: String,
}

impl Process {
    pub fn spawn(mut command: Command) -> Process {
        let stderr = tempfile::tempfile().unwrap();
        command.stdout(Stdio::piped()).stderr(stderr.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, lines, stderr }
    }

    /// The next line on stdout; `None` if the process closed it, which it does by ending, or took too long.
    pub fn line_within(&self, time: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(time)
    }

    pub fn stderr(&self) -> String {
        let mut file = self.stderr.try_clone().unwrap();
        file.rewind().unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether it has ended, which stays so until it is waited for.
    pub fn has_ended(&self) -> bool {
        let id = WaitId::Pid(self.pid());
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(id, look).unwrap().is_some()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// kill -9, and wait until it is gone.
    pub fn kill(mut self) -> ExitStatus {
        self.child.kill().unwrap();
        self.child.wait().unwrap()
    }

    /// Waits until it ends by itself.
    pub fn wait(mut self) -> Ended {
        let deadline = Instant::now() + DEADLINE;
        let mut stdout = Vec::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => stdout.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("does not end; stdout {stdout:?}, stderr:\n{}", self.stderr())
                }
            }
        }
        let code = self.child.wait().unwrap().code();
        Ended { code, stdout, stderr: self.stderr() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            let stderr = self.stderr();
            let tail: Vec<&str> = stderr.lines().rev().take(60).collect();
            eprintln!("process {:?}, ended: {}, its last lines:", self.pid(), self.has_ended());
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Holds it to a refusal: exit 1, not a word on stdout, one line of error with these words in it.
    #[track_caller]
    pub fn refused_with(&self, words: &[&str]) {
        assert!(self.stdout.is_empty(), "{self:?}");
        self.fails_with(words);
    }

    /// Holds it to a failure: exit 1, one line of error with these words in it.
    #[track_caller]
    pub fn fails_with(&self, words: &[&str]) {
        let errors: Vec<&str> = self.stderr.lines().filter(|line| line.starts_with("ordain: ")).collect();
        assert_eq!((self.code, errors.len()), (Some(1), 1), "{self:?}");
        for word in words {
            assert!(errors[0].contains(word), "'{word}' is not in: {}", errors[0]);
        }
    }
}

/// Runs a command to its end.
pub fn run(command: Command) -> Ended {
    Process::spawn(command).wait()
}

/// A server that takes connections.
pub struct Server {
    process: Process,
    pub resp: SocketAddr,
    pub admin: SocketAddr,
    pub ready_line: String,
}

impl Server {
    /// Starts one and waits for its ready line.
    #[track_caller]
    pub fn start(command: Command) -> Server {
        Server::of(Process::spawn(command))
    }

    /// The server of a process whose ready line has not been read.
    #[track_caller]
    pub fn of(process: Process) -> Server {
        match process.line_within(DEADLINE) {
            Ok(line) => Server::ready(process, line),
            Err(_) => panic!("does not get ready; stderr:\n{}", process.stderr()),
        }
    }

    /// The server of a process that has said this.
    #[track_caller]
    pub fn ready(process: Process, ready_line: String) -> Server {
        let field = |name: &str| {
            let value = ready_line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("no {name} in: {ready_line}")).to_owned()
        };
        assert!(ready_line.starts_with("ready "), "{ready_line}");
        let (resp, admin) = (field("resp").parse().unwrap(), field("admin").parse().unwrap());
        assert!(field("engine").parse::<ordain_engines::registry::Engine>().is_ok(), "{ready_line}");
        assert_eq!(field("node"), "0");
        Server { process, resp, admin, ready_line }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.resp).unwrap()
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    pub fn kill(self) {
        self.process.kill();
    }

    /// Asks it to stop and holds it to a clean end.
    #[track_caller]
    pub fn stop(self) {
        self.process.signal(Signal::TERM);
        let ended = self.process.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }

    /// Waits until it ends by itself.
    pub fn wait(self) -> Ended {
        self.process.wait()
    }

    /// Memory in use, bytes.
    pub fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.pid().as_raw_nonzero());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Asks the admin server: status, head and body.
    pub fn http(&self, path: &str) -> (u16, String, String) {
        http(self.admin, path)
    }
}

/// Asks an HTTP server: status, head and body.
pub fn http(address: SocketAddr, path: &str) -> (u16, String, String) {
    try_http(address, path).unwrap()
}

/// The same, of a server that may be on its way out or in.
///
/// # Errors
/// It is not there, or went away before it had answered.
pub fn try_http(address: SocketAddr, path: &str) -> io::Result<(u16, String, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: ordain\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or(io::ErrorKind::InvalidData)?, head.to_ascii_lowercase(), body.to_owned()))
}

/// What a test takes for granted of a reply: it fails where that is otherwise.
pub trait Expect {
    fn int(&self) -> i64;

    /// A string of either kind; nothing is an empty one.
    fn bytes(&self) -> &[u8];

    fn text(&self) -> &str;

    fn items(&self) -> &[Reply];

    fn error(&self) -> &str;
}

impl Expect for Reply {
    #[track_caller]
    fn int(&self) -> i64 {
        match self {
            Reply::Int(n) => *n,
            other => panic!("{other:?} is no integer"),
        }
    }

    #[track_caller]
    fn bytes(&self) -> &[u8] {
        match self {
            Reply::Bulk(bytes) | Reply::Status(bytes) => bytes,
            Reply::Nil => b"",
            other => panic!("{other:?} is no string"),
        }
    }

    #[track_caller]
    fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).unwrap()
    }

    #[track_caller]
    fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            other => panic!("{other:?} is no array"),
        }
    }

    #[track_caller]
    fn error(&self) -> &str {
        match self {
            Reply::Error(text) => std::str::from_utf8(text).unwrap(),
            other => panic!("{other:?} is no error"),
        }
    }
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    replies: ReplyReader,
}

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        stream.set_nodelay(true)?;
        Ok(Client { stream, replies: ReplyReader::default() })
    }

    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next reply. An error: the connection is over, or has a timeout of its own.
    pub fn receive(&mut self) -> io::Result<Reply> {
        self.replies.read_from(&mut self.stream)
    }

    /// Sends a command of any bytes and waits for its reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Reply {
        self.send(&command(words)).unwrap();
        self.receive().unwrap()
    }

    /// Sends a command, words between spaces, and waits for its reply.
    pub fn run(&mut self, text: &str) -> Reply {
        self.call(&text.split_whitespace().collect::<Vec<_>>())
    }

    /// Asks for what may be done twice until it is done, as a client of a cluster does: on a machine that is busy, a node
    /// may be taken for lost although nothing has become of it.
    #[track_caller]
    pub fn insist(&mut self, text: &str) -> Reply {
        self.insist_on(&text.split_whitespace().collect::<Vec<_>>())
    }

    /// The same, with words of any bytes.
    #[track_caller]
    pub fn insist_on<A: AsRef<[u8]>>(&mut self, words: &[A]) -> Reply {
        let mut reply = Reply::Nil;
        until("a cluster does what it is asked", || {
            reply = self.call(words);
            !["BUSY", "UNKNOWN"].iter().any(|word| reply.is_error(word))
        });
        reply
    }

    /// All replies until the server closes the connection.
    pub fn rest(mut self) -> Vec<Reply> {
        std::iter::from_fn(|| self.receive().ok()).collect()
    }
}

/// Asks until the answer is right. Every question is a step towards it, so this does not wait for time alone.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "{what} never came true");
    }
}
