//! Starting a node's threads, and stopping them.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use ordain_model::{Histogram, Micros};
use ordain_role::{Address, NodeId, Rebuild, Role, Work};

use crate::clock::{Clock, micros};
use crate::control::{Control, Phase};
use crate::disk::{self, Disk, DiskLine, DiskPort, LINES};
use crate::edge::{Edge, Tokens};
use crate::loops::{Actor, Beat, Behaviour, Effects, EventLoop, LoopSnapshot, Pace, Route, State};
use crate::mailbox::{Inlet, Outlet, Party, mailbox};
use crate::poller::Poller;
use crate::service::{Debt, Line, Service};

/// The roles and edges of one loop. Role numbers are the node's: no two roles or edges have the same.
pub struct LoopSpec<M> {
    /// The name of its thread, and of the loop in metrics.
    pub name: String,
    /// The roles.
    pub roles: Vec<(u16, Box<dyn Role<Message = M>>)>,
    /// The edges.
    pub edges: Vec<(u16, Box<dyn Edge<Message = M>>)>,
    /// The core to run on, if on a certain one.
    pub core: Option<usize>,
}

impl<M> LoopSpec<M> {
    /// A loop with nothing on it.
    pub fn new(name: impl Into<String>) -> LoopSpec<M> {
        LoopSpec { name: name.into(), roles: Vec::new(), edges: Vec::new(), core: None }
    }

    /// Adds a role.
    #[must_use]
    pub fn role(mut self, number: u16, role: impl Role<Message = M> + 'static) -> LoopSpec<M> {
        self.roles.push((number, Box::new(role)));
        self
    }

    /// Adds an edge.
    #[must_use]
    pub fn edge(mut self, number: u16, edge: impl Edge<Message = M> + 'static) -> LoopSpec<M> {
        self.edges.push((number, Box::new(edge)));
        self
    }
}

impl<M> fmt::Debug for LoopSpec<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopSpec").field("name", &self.name).field("core", &self.core).finish_non_exhaustive()
    }
}

/// The options of a node's runtime.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Which node of the cluster it is: the node in its roles' addresses.
    pub node: NodeId,
    /// The number of the edge that takes messages to other nodes. Without one a message to another node halts this
    /// one.
    pub network: Option<u16>,
    /// How long an idle loop looks for work before it sleeps. It pays where a core is free to do so: not with
    /// a single loop, and not on two cores or fewer, where the default is not to.
    pub spin: Duration,
    /// The time that a stop waits for edges to finish what was begun, and then once more for roles and the disk.
    pub drain: Duration,
    /// How many messages a ring between two loops holds.
    pub ring: usize,
}

impl Default for Options {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = if cores > 2 { Duration::from_micros(20) } else { Duration::ZERO };
        Options { node: NodeId(0), network: None, spin, drain: Duration::from_secs(10), ring: 1024 }
    }
}

/// The reason why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is nothing to run.
    #[error("a node needs at least one loop")]
    NoLoops,
    /// A mistake in the wiring.
    #[error("two roles of a node have the number {0}")]
    DuplicateRole(u16),
    /// An edge cannot have what it needs, such as its address.
    #[error("cannot start {edge}: {reason}")]
    Edge {
        /// The edge.
        edge: &'static str,
        /// The error of the system.
        reason: io::Error,
    },
    /// The system refuses threads or file descriptors.
    #[error("cannot start the event loops: {0}; raise the limits of threads and open files")]
    System(#[from] io::Error),
}

/// The reason why a node ended other than by being asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// An invariant is broken, or there was a panic.
    #[error("the node stopped: {reason}")]
    Halted {
        /// The reason.
        reason: String,
    },
    /// Nothing is broken: a role wants the node to be started again without some of what it has on disk.
    #[error("the node has to be rebuilt")]
    Rebuilds(Rebuild),
    /// Nothing is broken: the node wants to be started again from all that it has on disk.
    #[error("the node has to be started again: {reason}")]
    Restarts {
        /// The reason.
        reason: String,
    },
}

/// How much longer than it may a thread takes to end that counts as one that hangs.
const HANGS_AFTER: Duration = Duration::from_secs(2);
/// The name of the thread that does what roles give away.
const WORK_THREAD: &str = "work";
/// The names of the disk threads.
const DISK_THREADS: [&str; LINES] = ["disk", "disk-background"];
/// The period of checks whether a thread has ended, once it is to.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Starts nodes.
#[derive(Clone, Copy, Debug)]
pub struct Runtime;

impl Runtime {
    /// Starts a node: its loops, its work thread, and its disk threads if it has a disk.
    ///
    /// # Errors
    /// [`StartError`]; nothing runs then.
    pub fn start<M: Send + 'static>(
        options: Options,
        mut disk: Option<Disk>,
        loops: Vec<LoopSpec<M>>,
    ) -> Result<Running, StartError> {
        let routes = routes(&loops)?;
        let pollers: Vec<(Poller, Arc<Party>)> =
            loops.iter().map(|_| Poller::new()).collect::<io::Result<_>>()?;
        let disk_pollers = [Poller::new()?, Poller::new()?];
        let (work_poller, work_party) = Poller::new()?;
        let loop_parties: Vec<Arc<Party>> = pollers.iter().map(|(_, party)| party.clone()).collect();
        let disk_parties = disk_pollers.iter().map(|(_, party)| party);
        let all = loop_parties.iter().chain(disk_parties).chain([&work_party]).cloned().collect();
        let control = Arc::new(Control::new(loops.len(), all));
        // On two loops or more a spinning one may be about to hear from another; alone it would only burn.
        let spin = if loops.len() > 1 { options.spin } else { Duration::ZERO };
        let pace = Pace { spin: micros(spin), drain: micros(options.drain) };
        let patience = options.drain * 2 + HANGS_AFTER;
        let clock = Clock::start();
        let ring = options.ring.max(1);
        let mut running = Running {
            control: control.clone(),
            clock,
            patience,
            threads: Vec::new(),
            snapshots: Arc::default(),
            beats: Arc::default(),
        };

        let mut disk_ports: [Vec<_>; LINES] = Default::default();
        let mut work_ports = Vec::new();
        let mut built = Vec::new();
        let parts = loops.into_iter().zip(pollers).zip(mesh(&loop_parties, ring));
        for ((spec, (poller, me)), ends) in parts {
            let core = spec.core;
            let (actors, first_edge) = actors(options.node, spec.roles, spec.edges, &poller)?;
            let port = disk.as_mut().map(|disk| {
                let lines = std::array::from_fn(|line| {
                    let (_, disk_party) = &disk_pollers[line];
                    let (line_to_disk, port) = DiskLine::new(ring, &me, disk_party);
                    disk_ports[line].push(port);
                    line_to_disk
                });
                DiskPort::new(disk.handle(), lines, actors.len())
            });
            let (work, work_port) = Line::new(ring, &me, &work_party);
            work_ports.push(work_port);
            let snapshot = LoopSnapshot { name: spec.name.clone(), ..LoopSnapshot::default() };
            let network = options.network.map(|role| Address { node: options.node, role });
            let effects = Effects::new((routes.clone(), network), ends.outlets, port, work, control.clone());
            let mut event_loop = EventLoop {
                name: spec.name,
                clock,
                pace,
                poller,
                me,
                control: control.clone(),
                actors,
                first_edge,
                inlets: ends.inlets,
                effects,
                snapshot: Arc::new(Mutex::new(snapshot)),
                beat: Arc::default(),
                state: State::default(),
            };
            // A reader before the loop's first turn sees how it begins.
            event_loop.report_now();
            built.push((core, event_loop));
        }

        running.beats = built.iter().map(|(_, event_loop)| event_loop.beat.clone()).collect();
        running.snapshots = built.iter().map(|(_, event_loop)| event_loop.snapshot.clone()).collect();
        // Loops first: the others end after them, so a loop that hangs is waited for, and named, before them.
        for (core, event_loop) in built {
            running.adopt(spawn_loop(core, event_loop))?;
        }
        if let Some(mut disk) = disk {
            let threads = DISK_THREADS.into_iter().zip(disk_pollers).zip(disk_ports);
            for ((name, (poller, me)), ports) in threads {
                let directory = disk.handle();
                let (serve, control) = (disk::serve(directory), control.clone());
                let thread = Service { poller, me, control, debt: Debt::Paid, serve, ports };
                running.adopt(spawn_service(name, thread))?;
            }
        }
        let work_thread = Service {
            poller: work_poller,
            me: work_party,
            control: control.clone(),
            // What is not done of a transaction when the node stops is done again from the log.
            debt: Debt::Dropped,
            serve: Box::new(|(place, work): (usize, Work)| (place, work.run())),
            ports: work_ports,
        };
        running.adopt(spawn_service(WORK_THREAD, work_thread))?;
        Ok(running)
    }
}

/// The loop and the place of each role, by number.
fn routes<M>(loops: &[LoopSpec<M>]) -> Result<Arc<[Option<Route>]>, StartError> {
    if loops.is_empty() {
        return Err(StartError::NoLoops);
    }
    let mut taken = BTreeSet::new();
    let mut routes = Vec::new();
    for (on_loop, spec) in loops.iter().enumerate() {
        let numbers = spec.roles.iter().map(|(n, _)| *n).chain(spec.edges.iter().map(|(n, _)| *n));
        for (place, number) in numbers.enumerate() {
            if !taken.insert(number) {
                return Err(StartError::DuplicateRole(number));
            }
            let number = usize::from(number);
            if routes.len() <= number {
                routes.resize(number + 1, None);
            }
            routes[number] = Some(Route { on_loop, place });
        }
    }
    Ok(routes.into())
}

/// One loop's ends of its mailboxes to and from all others.
struct Ends<T> {
    /// By target; none to itself.
    outlets: Vec<Option<Outlet<T>>>,
    inlets: Vec<Inlet<T>>,
}

/// Makes a mailbox for every ordered pair of loops.
fn mesh<T>(parties: &[Arc<Party>], ring: usize) -> Vec<Ends<T>> {
    let mut ends: Vec<Ends<T>> =
        parties.iter().map(|_| Ends { outlets: Vec::new(), inlets: Vec::new() }).collect();
    for (from, source) in parties.iter().enumerate() {
        for (to, target) in parties.iter().enumerate() {
            let outlet = (from != to).then(|| {
                let (outlet, inlet) = mailbox(ring, source, target);
                ends[to].inlets.push(inlet);
                outlet
            });
            ends[from].outlets.push(outlet);
        }
    }
    ends
}

/// Puts roles and edges on a loop, and lets edges register their sockets.
fn actors<M>(
    node: NodeId,
    roles: Vec<(u16, Box<dyn Role<Message = M>>)>,
    edges: Vec<(u16, Box<dyn Edge<Message = M>>)>,
    poller: &Poller,
) -> Result<(Vec<Actor<M>>, usize), StartError> {
    let first_edge = roles.len();
    let actor = |role, behaviour| Actor {
        address: Address { node, role },
        behaviour,
        events: 0,
        changes_seen: 0,
        times: Histogram::default(),
    };
    let mut actors: Vec<Actor<M>> =
        roles.into_iter().map(|(number, role)| actor(number, Behaviour::Role(role))).collect();
    for (i, (number, mut edge)) in edges.into_iter().enumerate() {
        let registry = poller.registry().try_clone()?;
        edge.register(registry, Tokens::new(i))
            .map_err(|reason| StartError::Edge { edge: edge.name(), reason })?;
        actors.push(actor(number, Behaviour::Edge(edge)));
    }
    Ok((actors, first_edge))
}

fn spawn_loop<M: Send + 'static>(
    core: Option<usize>,
    mut event_loop: EventLoop<M>,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(event_loop.name.clone()).spawn(move || {
        if let Some(id) = core
            && !core_affinity::set_for_current(CoreId { id })
        {
            tracing::warn!(name = event_loop.name, core = id, "cannot pin the loop to its core");
        }
        let control = event_loop.control.clone();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| event_loop.run())) {
            let (name, role) = (&event_loop.name, event_loop.acting());
            control.halt(format!("{role} on loop {name} panicked: {}", text_of(&*panic)));
        }
        control.loop_ended();
    })
}

fn spawn_service<J: Send + 'static, A: Send + 'static>(
    thread: &'static str,
    mut service: Service<J, A>,
) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(thread.to_owned()).spawn(move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| service.run())) {
            service.control.halt(format!("the {thread} thread panicked: {}", text_of(&*panic)));
        }
    })
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word")
}

type Snapshots = Arc<[Arc<Mutex<LoopSnapshot>>]>;
type Beats = Arc<[Arc<Beat>]>;

/// A node that runs. Dropping it stops it without draining.
#[derive(Debug)]
pub struct Running {
    control: Arc<Control>,
    clock: Clock,
    /// The time that its threads may take to end.
    patience: Duration,
    threads: Vec<JoinHandle<()>>,
    snapshots: Snapshots,
    beats: Beats,
}

impl Running {
    /// Waits until the node has ended, by [`Handle::stop`] or by itself.
    ///
    /// # Errors
    /// Why it ended by itself.
    pub fn wait(mut self) -> Result<(), Stopped> {
        self.join();
        self.control.ended().map_or(Ok(()), Err)
    }

    /// Lets edges finish what was begun, tells the roles by [`ordain_role::Event::Stop`], completes the disk requests
    /// that they have left, ends the loops, and waits for all that.
    ///
    /// # Errors
    /// Why the node ended by itself meanwhile.
    pub fn stop(self) -> Result<(), Stopped> {
        self.handle().stop();
        self.wait()
    }

    /// A way to reach the node from other threads.
    pub fn handle(&self) -> Handle {
        Handle {
            control: self.control.clone(),
            clock: self.clock,
            snapshots: self.snapshots.clone(),
            beats: self.beats.clone(),
        }
    }

    /// Takes in a thread; if there is none, dropping the node stops those that have started.
    fn adopt(&mut self, thread: io::Result<JoinHandle<()>>) -> io::Result<()> {
        self.threads
            .push(thread.inspect_err(|error| self.control.halt(format!("cannot start a thread: {error}")))?);
        Ok(())
    }

    /// Waits for the threads to end. One that does not is named and left behind.
    fn join(&mut self) {
        self.control.await_end();
        let deadline = Instant::now() + self.patience;
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                thread::sleep(LOOK_AGAIN);
            }
            if !thread.is_finished() {
                let name = thread.thread().name().unwrap_or("without a name");
                self.control.halt(format!("the thread {name} does not end: something in it hangs"));
                continue;
            }
            // What a thread may panic with has been caught inside; a role whose drop panics ends here.
            if let Err(panic) = thread.join() {
                self.control.halt(format!("a thread panicked while ending: {}", text_of(&*panic)));
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.control.advance(Phase::Stopping);
            self.join();
        }
    }
}

/// Reaches a running node from any thread: to stop it, and to look at it.
#[derive(Clone, Debug)]
pub struct Handle {
    control: Arc<Control>,
    clock: Clock,
    snapshots: Snapshots,
    beats: Beats,
}

impl Handle {
    /// Asks the node to stop as [`Running::stop`] does, without waiting.
    pub fn stop(&self) {
        self.control.advance(Phase::Draining);
    }

    /// The duration of the longest turn under way: a loop that stands still serves no client.
    pub fn longest_turn(&self) -> Micros {
        let now = self.clock.now().elapsed;
        self.beats.iter().map(|beat| beat.turn(now)).max().unwrap_or_default()
    }

    /// Shows the latest snapshot of each loop.
    pub fn inspect(&self, mut look: impl FnMut(&LoopSnapshot)) {
        for snapshot in self.snapshots.iter() {
            // A closure that panicked has only read it.
            look(&snapshot.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
