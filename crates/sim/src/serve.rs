//! The clients' side of the simulator: what happens at the front doors.

use ordain_gateway::Stream;
use ordain_model::args::{Args, ArgsBuilder};
use ordain_model::{Call, Effect, Front, Micros, OutcomeBatch, OutcomeStatus, SessionId, View};
use ordain_role::{Address, NodeId, PeerChange};

use crate::client::{Answered, Client, Waiter};
use crate::load::Load;
use crate::queue::Happening;
use crate::simulator::Simulator;
use crate::system::System;
use ordain_checker::RequestId;
use ordain_checker::{Violation, ViolationKind};

impl<S: System> Simulator<'_, S> {
    pub(crate) fn add_clients(&mut self) {
        let mut asked_before = self.config.asked_before.iter();
        for number in 0..self.config.load.clients {
            let door = number as usize % self.doors.len().max(1);
            // Somebody has to load.
            let must = number == 0 && self.workload.loads();
            let session = self.random.chance(self.config.load.session_chance) || must;
            let (session, loops) = match session {
                true => (
                    Some(SessionId(self.config.sessions_before + u64::from(number) + 1)),
                    self.config.load.session_pipeline,
                ),
                false => (None, self.config.load.pipeline),
            };
            let mut client = Client::new(door, session, loops.max(1));
            if let Some((call, args)) = session.and_then(|_| asked_before.next())
                && let Some(last) = call.session
            {
                let by = (Some(number as usize), 0);
                self.counts.asked_again += 1;
                client.go_on(last, self.history.sent_over(by, self.now, *call, args.clone()));
            }
            self.clients.push(client);
        }
    }

    /// True while a client waits for an answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.clients.iter().any(|client| client.loops.iter().any(Option::is_some))
    }

    /// A node has started: clients without a connection try to get one.
    pub(crate) fn reconnect_clients(&mut self) {
        for client in 0..self.clients.len() {
            if !self.clients[client].connected {
                let has_session = self.clients[client].session.is_some();
                let delay = self.config.load.reconnects_after(has_session, &mut self.random);
                self.after(delay, Happening::Reconnect { client });
            }
        }
    }

    /// A node is gone, and with it its clients' connections: they try other nodes.
    pub(crate) fn disconnect_clients(&mut self, node: usize) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if client.connected && self.doors[client.door].node.0 as usize == node {
                client.disconnect();
                let delay = self.config.load.reconnects_after(client.session.is_some(), &mut self.random);
                self.after(delay, Happening::Reconnect { client: number });
            }
        }
    }

    /// A client connects at any door of any node that is up; one that has a session sends again what it waits for.
    pub(crate) fn reconnect(&mut self, number: usize) {
        let is_up = |door: &usize| {
            let node = &self.nodes[self.doors[*door].node.0 as usize];
            node.up && !node.is_closing
        };
        let doors: Vec<usize> = (0..self.doors.len()).filter(is_up).collect();
        if self.clients[number].connected || doors.is_empty() {
            return;
        }
        let client = &mut self.clients[number];
        client.connected = true;
        client.connections += 1;
        client.door = doors[self.random.index(doors.len())];
        let node = usize::from(self.doors[client.door].node.0);
        let life = (node, self.nodes[node].incarnation);
        let turns = std::mem::replace(&mut client.of_life, life) != life;
        for request in self.clients[number].waiting() {
            if turns && !self.system.sessions_outlast_nodes() {
                let connection = self.clients[number].connections;
                self.history.moved_to(connection, request);
            }
            self.resend(number, request);
        }
        for loop_no in 0..self.clients[number].loops.len() {
            if self.clients[number].loops[loop_no].is_none() {
                self.think_soon(number, loop_no);
            }
        }
    }

    fn think_soon(&mut self, client: usize, loop_no: usize) {
        let delay = self.config.load.think(&mut self.random);
        self.after(delay, Happening::Think { client, loop_no });
    }

    pub(crate) fn think(&mut self, number: usize, loop_no: usize) {
        let load = self.config.load;
        let client = &self.clients[number];
        let is_closing = self.nodes[usize::from(self.doors[client.door].node.0)].is_closing;
        let is_busy = client.loops[loop_no].is_some();
        if self.healed || self.has_asked_enough() || is_closing || !client.connected || is_busy {
            return;
        }
        if self.now < self.rests_until {
            let delay = load.think(&mut self.random);
            let at = self.rests_until.plus(Micros(delay));
            return self.at(at, Happening::Think { client: number, loop_no });
        }
        let Some((mut call, args, loads)) = self.make_up(number) else {
            return self.think_soon(number, loop_no);
        };
        let client = &mut self.clients[number];
        call.session = client.number();
        let by = (Some(number), client.connections);
        let request = self.history.sent_over(by, self.now, call, args);
        let client = &mut self.clients[number];
        client.loops[loop_no] = Some(request);
        client.last = client.session.and(Some(request));
        self.rest_after_wave();
        if loads {
            self.loads(request);
        }
        self.submit(Some(number), request);
    }

    /// All clients rest once another wave of requests is asked.
    pub(crate) fn rest_after_wave(&mut self) {
        self.note_asked();
        let Load { wave, rest_us, .. } = self.config.load;
        let waves = self.asked().checked_div(wave).unwrap_or_default();
        if waves > self.waves {
            self.waves = waves;
            self.rests_until = self.now.plus(Micros(self.random.between(1, 2 * rest_us.max(1))));
        }
    }

    /// True once clients have asked for as much as the run is for, unless it lasts for a time.
    pub(crate) fn has_asked_enough(&self) -> bool {
        self.config.virtual_time.is_none() && self.asked() >= self.config.txns
    }

    fn resend(&mut self, client: usize, request: RequestId) {
        self.history.sent_again(request);
        self.submit(Some(client), request);
    }

    /// Clients ask the last requests of their sessions once more, as one does that has lost the answer: each has had its
    /// effect, and is answered as before.
    pub(crate) fn ask_again(&mut self) {
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if let Some(request) = client.last.filter(|_| client.connected && client.waiting().is_empty()) {
                client.loops[0] = Some(request);
                self.resend(number, request);
            }
        }
    }

    pub(crate) fn resend_rejected(&mut self, number: usize, request: RequestId, attempt: u32) {
        if self.is_latest(number, request, attempt) && self.clients[number].connected {
            self.resend(number, request);
        }
    }

    pub(crate) fn lose_patience(&mut self, number: usize, request: RequestId, attempt: u32) {
        if self.healed || !self.is_latest(number, request, attempt) || !self.clients[number].connected {
            return;
        }
        self.trace.note(self.now, format_args!("client {number} drops its connection"));
        self.clients[number].disconnect();
        self.reconnect(number);
    }

    /// True if a client waits for just this attempt at a request.
    fn is_latest(&self, client: usize, request: RequestId, attempt: u32) -> bool {
        self.clients[client].loop_of(request).is_some() && self.history.get(request).attempts == attempt
    }

    /// Asks the state's digest at a node's first door, for the driver itself.
    pub(crate) fn probe(&mut self, node: usize, call: Call) -> RequestId {
        self.probe_with(node, call, |_| ())
    }

    /// As [`probe`](Simulator::probe), with arguments.
    pub(crate) fn probe_with(
        &mut self,
        node: usize,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> RequestId {
        let mut args = Vec::new();
        write_args(&mut ArgsBuilder::new(&mut args));
        let request = self.history.sent(self.now, call, args);
        self.submit_at(node * usize::from(self.config.doors), None, request);
        request
    }

    /// Sends a probe again that was rejected.
    pub(crate) fn probe_again(&mut self, node: usize, request: RequestId) {
        self.history.sent_again(request);
        self.submit_at(node * usize::from(self.config.doors), None, request);
    }

    fn submit(&mut self, client: Option<usize>, request: RequestId) {
        let Some(number) = client else { return };
        self.submit_at(self.clients[number].door, client, request);
        let attempt = self.history.get(request).attempts;
        let has_session = self.clients[number].session.is_some();
        let is_hasty = has_session && self.random.chance(self.intensity.impatience_chance);
        let patience = match is_hasty {
            true => self.random.tail(20_000),
            false => self.intensity.patience_us_max,
        };
        if patience > 0 {
            self.after(patience, Happening::Impatient { client: number, request, attempt });
        }
    }

    fn submit_at(&mut self, number: usize, client: Option<usize>, request: RequestId) {
        let waiter = Waiter { request, client, attempt: self.history.get(request).attempts };
        let node = &mut self.nodes[self.doors[number].node.0 as usize];
        if node.is_frozen {
            // It has arrived, and is read when the node goes on.
            node.held.push(Happening::Ask { door: number, life: node.incarnation, waiter });
        } else {
            self.enter(number, waiter);
        }
    }

    /// A request enters the gateway of a door.
    pub(crate) fn enter(&mut self, number: usize, waiter: Waiter) {
        let Waiter { request, attempt, client } = waiter;
        // The driver's own probes ask for what is there in the end.
        let view = client.map_or(View::Ordered, |client| View::Since(self.clients[client].seen.clone()));
        let door = &mut self.doors[number];
        let asked = self.history.get(request);
        let (call, args) = (asked.call, asked.args.clone());
        self.trace.note(
            self.now,
            format_args!("ask {} attempt {attempt} door {number} {call:?} {args:02x?}", request.0),
        );
        let ticket = door.ticket(waiter);
        let write = |out: &mut ArgsBuilder<'_>| {
            Args::parse(&args).into_iter().flatten().for_each(|arg| _ = out.push(arg.bytes));
        };
        let submitted = match client {
            Some(client) => {
                let stream = Stream(client as u32);
                door.gateway.submit_in_order(stream, ticket, call, view, write)
            }
            None => door.gateway.submit_to(ticket, call, view, write),
        };
        match submitted {
            Ok(_) => self.flush_soon(number),
            Err(refusal) => {
                door.redeem(ticket);
                let reply = refusal.to_string();
                let node = self.doors[number].node;
                let answerer = (node, self.nodes[usize::from(node.0)].incarnation);
                self.answer(waiter, answerer, OutcomeStatus::Refused, &Effect::NONE, reply.as_bytes());
            }
        }
        self.check_door(number);
    }

    /// Fails the run if an invariant of a front door is broken.
    fn check_door(&mut self, number: usize) {
        let door = &self.doors[number];
        if let Some(reason) = self.config.asks_roles.then(|| door.check().err()).flatten() {
            let text = format!("node {}, its front door: {reason}", door.node.0);
            self.fail(Violation::new(ViolationKind::Invariant, text));
        }
    }

    pub(crate) fn flush_soon(&mut self, number: usize) {
        let door = &mut self.doors[number];
        if !door.flushing {
            door.flushing = true;
            let life = self.nodes[door.node.0 as usize].incarnation;
            let delay = self.random.tail(self.intensity.local_delay_us_max);
            self.after(delay, Happening::Flush { door: number, life });
        }
    }

    pub(crate) fn flush(&mut self, number: usize) {
        self.doors[number].flushing = false;
        let sent = self.doors[number].flush();
        self.send_all(number, sent);
    }

    fn send_all(&mut self, number: usize, sent: Vec<(Address, Front)>) {
        let from = self.doors[number].address;
        for (to, front) in sent {
            self.send(from, to, front.into());
        }
    }

    pub(crate) fn take_outcomes(&mut self, number: usize, answerer: (NodeId, u32), batch: &OutcomeBatch) {
        self.note_load(batch);
        for outcome in &batch.outcomes {
            let (from, chunk, index) = (answerer.0.0, outcome.chunk.0, outcome.index);
            self.trace.note(
                self.now,
                format_args!(
                    "outcome at door {number} from node {from}: chunk {chunk} index {index} {:?}",
                    outcome.status
                ),
            );
        }
        for Answered { waiter, status, effect, reply } in self.doors[number].take_outcomes(batch) {
            self.answer(waiter, answerer, status, &effect, &reply);
        }
        self.check_door(number);
        self.flush_soon(number);
    }

    /// The doors of a node hear what has become of the stream to another.
    pub(crate) fn tell_doors(&mut self, node: usize, change: PeerChange) {
        for number in 0..self.doors.len() {
            if self.doors[number].node.0 as usize == node {
                self.tell_door(number, change);
            }
        }
    }

    /// One hears of it.
    pub(crate) fn tell_door(&mut self, number: usize, change: PeerChange) {
        let lost = self.doors[number].change(change);
        self.give_up(number, lost);
    }

    /// A door knows that a node has met its own: what is lost by then is given up.
    pub(crate) fn greeted(&mut self, number: usize, by: NodeId) {
        let lost = self.doors[number].greeted(by);
        self.give_up(number, lost);
    }

    fn give_up(&mut self, number: usize, lost: Vec<Answered>) {
        let node = self.doors[number].node;
        for Answered { waiter, status, effect, reply } in lost {
            let answerer = (node, self.nodes[usize::from(node.0)].incarnation);
            self.answer(waiter, answerer, status, &effect, &reply);
        }
        self.check_door(number);
        let sent = self.doors[number].retry();
        self.send_all(number, sent);
        // What may have been lost and does no harm is asked again.
        self.flush_soon(number);
    }

    fn answer(
        &mut self,
        waiter: Waiter,
        answerer: (NodeId, u32),
        status: OutcomeStatus,
        effect: &Effect,
        reply: &[u8],
    ) {
        let Waiter { request, client, attempt } = waiter;
        let place = self.system.place(effect.stamp);
        self.trace.note(
            self.now,
            format_args!("answer {} attempt {attempt} {status:?} {place} {reply:02x?}", request.0),
        );
        self.history.note_now(self.now);
        self.history.answered_by(answerer, request, status, effect.stamp, reply);
        let Some(number) = client else { return };
        // An answer to an attempt whose connection was dropped is noted, but does not reach the client.
        if !self.is_latest(number, request, attempt) {
            return self.history.missed(request);
        }
        let Some(loop_no) = self.clients[number].loop_of(request) else { return };
        let asked = self.history.get(request);
        if asked.answers.iter().filter(|answer| answer.has_reached).count() < 2 {
            self.workload.heard((asked.call.procedure, &asked.args), status, reply);
        }
        self.clients[number].seen.merge(&effect.token);
        if status == OutcomeStatus::Superseded {
            // Its session has not gone on: this is the request that it waits for.
            let text = "a request was called superseded although its session waits for it";
            return self.fail(Violation::new(ViolationKind::AcknowledgedLost, text).of(request));
        }
        let rejected =
            matches!(status, OutcomeStatus::Busy | OutcomeStatus::Refused | OutcomeStatus::Unknown);
        if rejected && self.clients[number].session.is_some() {
            let pause = 100 + self.random.tail(10_000);
            self.after(pause, Happening::Resend { client: number, request, attempt });
            return;
        }
        self.clients[number].loops[loop_no] = None;
        // One that was turned away does not come back at once.
        let pause = if rejected { Micros(100 + self.random.tail(10_000)) } else { Micros(0) };
        let delay = pause.plus(Micros(self.config.load.think(&mut self.random)));
        self.after(delay.0, Happening::Think { client: number, loop_no });
    }
}
