//! One thread of clients: connections, each with transactions in flight, on one event loop.
//!
//! In a closed loop every place in every pipeline holds a transaction, and the next is made up when one is answered.
//! In an open loop each is due at a time of a [`Schedule`], whether or not there is a place for it: one that has to wait
//! is late from when it was due, and those that never got their turn are counted. A timer of the kernel wakes the
//! thread when the next is due, to the microsecond: a poll's milliseconds would show in the latencies.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use ordain_model::{Args, ArgsBuilder, Micros, OutcomeStatus, ProcedureId};
use ordain_resp::client::{Commands, Read, ReplyParser};
use ordain_workload::{Made, Source};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::forms::Form;
use crate::loading::{Asked, TurnedAway};
use crate::meter::thread_cpu;
use crate::schedule::{Schedule, next_request};
use crate::stage::{Stage, Stages};
use crate::tally::{Answer, Book};

/// State that populations share with the leading thread.
#[derive(Debug)]
pub struct Shared {
    pub stages: Stages,
    /// From when all times count.
    pub origin: Instant,
}

impl Shared {
    /// Before loading.
    pub fn new() -> Shared {
        Shared { stages: Stages::default(), origin: Instant::now() }
    }
}

/// A message of a population to the leading thread.
#[derive(Debug)]
pub enum Update {
    Loaded,
    Ended(Box<Report>),
}

/// The outcome of a population.
#[derive(Debug)]
pub struct Report {
    pub book: Book,
    pub summary: Vec<u8>,
    /// Processor time of the thread while measuring.
    pub cpu: Duration,
    /// True if the thread never saw that measuring had begun.
    pub missed: bool,
    /// The reason why it could not go on.
    pub failure: Option<String>,
}

/// The task of a population.
pub struct Task {
    pub source: Box<dyn Source>,
    pub kinds: usize,
    pub form: Arc<dyn Form>,
    /// Connections that were let in.
    pub streams: Vec<std::net::TcpStream>,
    /// Most transactions in flight on a connection.
    pub pipeline: usize,
    /// Transactions a second, in an open loop.
    pub rate: Option<f64>,
    /// Seed and stream of the schedule.
    pub seed: (u64, u64),
    /// Transactions to ask for, if that ends the run.
    pub budget: Option<u64>,
    /// Longest wait without an answer.
    pub patience: Duration,
}

/// Transactions of loading in flight on a connection: enough to hide a sync.
const LOAD_PIPELINE: usize = 16;
/// Unsent bytes of a connection beyond which it is given nothing more to send.
const UNSENT_MAX: usize = 1 << 20;
/// Longest time until a population looks for the next stage: with nothing in flight, and while it waits for answers.
const LOOK_IDLE: Duration = Duration::from_millis(1);
const LOOK_WAITING: Duration = Duration::from_millis(20);
/// The token of the timer; connections number from 0.
const TIMER: Token = Token(usize::MAX - 1);

/// A transaction that waits for its replies.
#[derive(Debug)]
struct InFlight {
    procedure: ProcedureId,
    kind: u8,
    replies: u32,
    /// Time at which it was asked, or was due.
    asked: Micros,
    /// Itself, while loading: it may have to be asked for again.
    load: Option<Asked>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    out: Commands,
    sent: usize,
    input: Vec<u8>,
    parser: ReplyParser,
    /// Replies to the oldest transaction in flight, as far as they have come.
    replies: Vec<u8>,
    in_flight: VecDeque<InFlight>,
}

impl Connection {
    /// Sends as much as the socket takes.
    fn send(&mut self) -> anyhow::Result<()> {
        while self.sent < self.out.bytes.len() {
            match self.stream.write(&self.out.bytes[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("the server has gone"),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Takes what has come; returns whether there may be more.
    fn receive(&mut self, piece: &mut [u8]) -> anyhow::Result<bool> {
        match self.stream.read(piece) {
            Ok(0) => bail!("the server has closed a connection"),
            Ok(bytes) => {
                self.input.extend_from_slice(&piece[..bytes]);
                // Less than was asked for: what comes later wakes us again.
                Ok(bytes == piece.len())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error).context("the server has gone"),
        }
    }

    fn has_room(&self, pipeline: usize) -> bool {
        self.in_flight.len() < pipeline && self.out.bytes.len() - self.sent < UNSENT_MAX
    }
}

/// The clients of one thread.
pub struct Population {
    task: Task,
    shared: Arc<Shared>,
    updates: Sender<Update>,
    poll: Poll,
    timer: OwnedFd,
    connections: Vec<Connection>,
    /// Connections that may have room, in turn.
    turn: usize,
    schedule: Option<Schedule>,
    stage: Stage,
    loaded: bool,
    turned: TurnedAway,
    answered_at: Micros,
    args: Vec<u8>,
    reply: Vec<u8>,
    book: Book,
    /// Processor time of the thread when measuring began and ended.
    begun: Option<Duration>,
    ended: Option<Duration>,
    /// Measuring was over when this thread looked.
    missed: bool,
}

impl Population {
    /// Takes the connections over.
    pub fn new(mut task: Task, shared: Arc<Shared>, updates: Sender<Update>) -> anyhow::Result<Population> {
        let poll = Poll::new().context("an event loop")?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
            .context("a timer")?;
        poll.registry()
            .register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)
            .context("watching the timer")?;
        let mut connections = Vec::new();
        for (i, stream) in task.streams.drain(..).enumerate() {
            let mut stream = TcpStream::from_std(stream);
            poll.registry()
                .register(&mut stream, Token(i), Interest::READABLE | Interest::WRITABLE)
                .context("watching a connection")?;
            connections.push(Connection {
                stream,
                out: Commands::default(),
                sent: 0,
                input: Vec::new(),
                parser: ReplyParser::default(),
                replies: Vec::new(),
                in_flight: VecDeque::new(),
            });
        }
        Ok(Population {
            book: Book::new(task.kinds),
            shared,
            updates,
            poll,
            timer,
            connections,
            turn: 0,
            schedule: None,
            stage: Stage::Load,
            loaded: false,
            turned: TurnedAway::default(),
            answered_at: Micros(0),
            args: Vec::new(),
            reply: Vec::new(),
            begun: None,
            ended: None,
            missed: false,
            task,
        })
    }

    /// Goes through all stages, and reports the outcome.
    pub fn run(mut self) {
        let failure = self.go().err().map(|error| format!("{error:#}"));
        if self.stage == Stage::Measure {
            self.end_measuring(self.now());
        }
        let cpu = self.begun.zip(self.ended).map(|(begun, ended)| ended.saturating_sub(begun));
        self.book.unanswered = self.in_flight() as u64;
        let (book, summary) = (self.book, self.task.source.summary());
        let report = Report { book, summary, cpu: cpu.unwrap_or_default(), missed: self.missed, failure };
        // If the channel is closed, the run has been given up.
        let _ = self.updates.send(Update::Ended(Box::new(report)));
    }

    fn now(&self) -> Micros {
        Micros(self.shared.origin.elapsed().as_micros() as u64)
    }

    fn in_flight(&self) -> usize {
        self.connections.iter().map(|connection| connection.in_flight.len()).sum()
    }

    fn go(&mut self) -> anyhow::Result<()> {
        let mut events = Events::with_capacity(256);
        let mut piece = vec![0; 64 << 10];
        loop {
            let now = self.now();
            let stage = self.shared.stages.stage();
            if stage != self.stage {
                self.enter(stage, now);
            }
            self.submit(now)?;
            for connection in &mut self.connections {
                connection.send()?;
            }
            let idle = self.in_flight() == 0;
            if idle {
                self.answered_at = now;
                match self.stage {
                    Stage::Load if !self.loaded => {
                        self.loaded = true;
                        let _ = self.updates.send(Update::Loaded);
                    }
                    Stage::Measure if self.task.budget == Some(0) => {
                        self.end_measuring(now);
                        return Ok(());
                    }
                    Stage::Drain => return Ok(()),
                    _ => {}
                }
            } else if now.since(self.answered_at).0 > self.task.patience.as_micros() as u64 {
                bail!("the server has answered nothing for {} s", self.task.patience.as_secs());
            }
            self.wait(idle, &mut events)?;
            for event in &events {
                let at = event.token().0;
                if let Some(connection) = self.connections.get_mut(at) {
                    while connection.receive(&mut piece)? {}
                    self.take(at)?;
                }
            }
        }
    }

    /// Waits until something happens, the next transaction is due, or it is time to look for the next stage.
    fn wait(&mut self, idle: bool, events: &mut Events) -> anyhow::Result<()> {
        let look = if idle { LOOK_IDLE } else { LOOK_WAITING };
        let has_room = self.connections.iter().any(|connection| connection.has_room(self.task.pipeline));
        let due = match &self.schedule {
            Some(schedule) if self.stage < Stage::Drain && has_room => {
                // Fresh, as making up and sending took their time.
                Some(Duration::from_micros(schedule.next().since(self.now()).0))
            }
            _ => None,
        };
        let mut timeout = look;
        if let Some(due) = due {
            match due {
                Duration::ZERO => timeout = Duration::ZERO,
                due if due < look => self.wake_after(due)?,
                _ => {}
            }
        }
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => {
                Err(error).context("waiting for the server")
            }
            _ => Ok(()),
        }
    }

    fn wake_after(&self, after: Duration) -> anyhow::Result<()> {
        let it_value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value };
        timerfd_settime(self.timer.as_fd(), TimerfdTimerFlags::empty(), &spec).context("setting a timer")?;
        Ok(())
    }

    fn enter(&mut self, stage: Stage, now: Micros) {
        if self.stage == Stage::Load {
            let (seed, stream) = self.task.seed;
            self.schedule = self.task.rate.map(|rate| Schedule::new(rate, now, seed, stream));
        }
        if stage >= Stage::Measure && self.begun.is_none() {
            self.missed = stage > Stage::Measure;
            self.begun = Some(thread_cpu());
            self.book.begin(now);
        }
        if stage > Stage::Measure {
            self.end_measuring(now);
        }
        self.stage = stage;
        self.answered_at = now;
    }

    fn end_measuring(&mut self, now: Micros) {
        if self.ended.is_none() {
            self.ended = Some(thread_cpu());
            // Those beyond the budget are not due, however late it is.
            self.book.end(now, self.schedule.as_ref(), self.task.budget.unwrap_or(u64::MAX));
        }
    }

    /// True if the budget is spent. Loading is no part of it.
    fn is_spent(&self) -> bool {
        self.stage != Stage::Load && self.task.budget == Some(0)
    }

    /// Makes up a transaction for every place that is free, and is due.
    fn submit(&mut self, now: Micros) -> anyhow::Result<()> {
        let pipeline = match self.stage {
            Stage::Load if self.loaded => return Ok(()),
            Stage::Load => LOAD_PIPELINE,
            Stage::Drain | Stage::Audit => return Ok(()),
            Stage::WarmUp | Stage::Measure => self.task.pipeline,
        };
        let mut full = 0;
        while full < self.connections.len() && !self.is_spent() {
            let at = self.turn % self.connections.len();
            self.turn = at + 1;
            if !self.connections[at].has_room(pipeline) {
                full += 1;
                continue;
            }
            full = 0;
            let Task { source, budget, .. } = &mut self.task;
            let again = self.turned.next();
            let (procedure, kind, asked) = match &again {
                Some(again) => {
                    self.args.clone_from(&again.args);
                    (again.procedure, 0, now)
                }
                None => {
                    // A pipeline has no class: what is behind a long transaction waits for its answer.
                    let made =
                        next_request(self.stage, &mut **source, None, self.schedule.as_mut(), budget, now);
                    let Some((Made { procedure, kind }, asked)) = made else { break };
                    self.args.clear();
                    self.task.source.write_args(&mut ArgsBuilder::new(&mut self.args));
                    (procedure, kind, asked)
                }
            };
            let is_load = self.stage == Stage::Load;
            let load = again.or_else(|| is_load.then(|| Asked::first(procedure, &self.args)));
            let args = Args::parse(&self.args).context("a workload wrote arguments that are none")?;
            let connection = &mut self.connections[at];
            let before = connection.out.count;
            self.task.form.write(procedure, args, &mut connection.out)?;
            let replies = connection.out.count - before;
            connection.in_flight.push_back(InFlight { procedure, kind, replies, asked, load });
        }
        Ok(())
    }

    /// Takes the replies that a connection has received.
    fn take(&mut self, at: usize) -> anyhow::Result<()> {
        let now = self.now();
        let (mut done, mut answered) = (0, 0);
        while let connection = &mut self.connections[at]
            && done < connection.input.len()
        {
            let Some(front) = connection.in_flight.front_mut() else {
                bail!("the server answered what was not asked");
            };
            match connection.parser.read_datum(&connection.input[done..], &mut connection.replies)? {
                Read::Part(bytes) => {
                    done += bytes;
                    break;
                }
                Read::Whole(bytes) => {
                    done += bytes;
                    front.replies -= 1;
                }
            }
            if front.replies > 0 {
                continue;
            }
            let Some(ended) = connection.in_flight.pop_front() else {
                break;
            };
            self.reply.clear();
            let status = self.task.form.read(ended.procedure, &connection.replies, &mut self.reply)?;
            connection.replies.clear();
            answered += u64::from(self.finish(status, ended, now)?);
        }
        self.connections[at].input.drain(..done);
        self.answered_at = now;
        self.shared.stages.answered.fetch_add(answered, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that a transaction has ended with the reply at hand; returns whether it took effect.
    fn finish(
        &mut self,
        status: OutcomeStatus,
        InFlight { kind, asked, load, .. }: InFlight,
        now: Micros,
    ) -> anyhow::Result<bool> {
        let committed = status == OutcomeStatus::Committed;
        if let Some(load) = load {
            if !self.turned.ended(load, status) {
                let text = ordain_model::Datum::first(&self.reply);
                bail!("the server did not take the data: {status:?}, {text:?}");
            }
            return Ok(committed);
        }
        self.task.source.answered(kind, status, &self.reply);
        self.book.note(Answer { kind, status, restarts: 0, asked, now });
        Ok(committed)
    }
}
