//! What the clients saw: every request, when it was asked, and how it was answered.
//!
//! The checkers work from this and from the durable log alone; they know neither the driver nor an engine.

use ordain_model::{Call, Gsn, Micros, Millis, OutcomeStatus, Stamp};
use ordain_role::NodeId;

/// A request's place in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub usize);

/// A point in real time: no two things of a history happen at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

/// An answer that a client was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its point in real time.
    pub moment: Moment,
    /// Its virtual time, if somebody has noted that; else 0.
    pub at: Micros,
    /// By which node, and in which life of it.
    pub answerer: (NodeId, u32),
    /// Whether it reached the client: one whose connection was dropped does not know of it.
    pub has_reached: bool,
    /// How the request ended.
    pub status: OutcomeStatus,
    /// Where it has taken effect.
    pub stamp: Stamp,
    /// The reply, encoded.
    pub reply: Vec<u8>,
    /// The latest time that any wall clock of the system had shown by then, if somebody has noted that.
    pub wall: Option<Millis>,
}

impl Answer {
    /// Its place in the order of the deterministic family.
    pub(crate) fn gsn(&self) -> Gsn {
        self.stamp.into()
    }
}

/// One request. A client of a session may have sent it more than once, and then may have more than one answer;
/// one without any may or may not have taken effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What was called, and the client's own request number if it has a session.
    pub call: Call,
    /// The encoded arguments, as the client gave them.
    pub args: Vec<u8>,
    /// Which client asked; none for the driver's own.
    pub client: Option<usize>,
    /// Over which of its connections it was first sent, or [moved to](History::moved_to), counted from 1; 0 if that is not known.
    pub connection: u32,
    /// When it was first sent.
    pub moment: Moment,
    /// The same in virtual time, for people.
    pub at: Micros,
    /// It reads the very state that an earlier read has seen, however old that is by now, as of this time.
    pub snapshot_time: Option<Millis>,
    /// The answers that say what became of it, in the order in which they came.
    pub answers: Vec<Answer>,
    /// The number of answers that it was not sequenced.
    pub rejections: u32,
    /// The number of answers that its end is unknown.
    pub unknowns: u32,
    /// How many times it was sent.
    pub attempts: u32,
    /// The connection over which it was sent last, and when, if it was sent again and somebody has noted that.
    pub again: Option<(u32, Moment)>,
}

impl Request {
    /// Whether an answer to its last attempt may still come, as far as its answers tell.
    pub fn is_open(&self) -> bool {
        self.answers.is_empty() && self.rejections + self.unknowns < self.attempts
    }

    /// True if later requests of its connection may take effect before it: its place is that of a later attempt, or nobody
    /// knows its end. What stands before it in the order of its connection does so in any case.
    pub fn may_be_overtaken(&self) -> bool {
        self.attempts > 1 || self.answers.is_empty()
    }

    /// Whether it cannot have taken effect: every time it was sent, the answer was that it was not sequenced.
    pub fn is_rejected(&self) -> bool {
        self.answers.is_empty() && self.rejections == self.attempts
    }
}

/// All requests of a run, in the order in which they were first sent.
#[derive(Clone, Debug, Default)]
pub struct History {
    requests: Vec<Request>,
    moments: u64,
    wall: Option<Millis>,
    now: Micros,
}

impl History {
    /// Notes that a request was sent for the first time.
    pub fn sent(&mut self, at: Micros, call: Call, args: Vec<u8>) -> RequestId {
        self.sent_by(None, at, call, args)
    }

    /// The same, by a client.
    pub fn sent_by(&mut self, client: Option<usize>, at: Micros, call: Call, args: Vec<u8>) -> RequestId {
        self.sent_over((client, 0), at, call, args)
    }

    /// The same, over one of its connections.
    pub fn sent_over(
        &mut self,
        (client, connection): (Option<usize>, u32),
        at: Micros,
        call: Call,
        args: Vec<u8>,
    ) -> RequestId {
        let moment = self.moment();
        self.requests.push(Request {
            call,
            args,
            client,
            connection,
            moment,
            at,
            snapshot_time: None,
            answers: Vec::new(),
            rejections: 0,
            unknowns: 0,
            attempts: 1,
            again: None,
        });
        RequestId(self.requests.len() - 1)
    }

    /// Notes that a request was sent again.
    pub fn sent_again(&mut self, request: RequestId) {
        self.requests[request.0].attempts += 1;
    }

    /// Notes that a request is one of another connection, which owes nothing to those before.
    pub fn moved_to(&mut self, connection: u32, request: RequestId) {
        self.requests[request.0].connection = connection;
    }

    /// Notes that a request was sent again, and over which of its client's connections.
    pub fn sent_again_over(&mut self, connection: u32, request: RequestId) {
        self.sent_again(request);
        self.requests[request.0].again = Some((connection, self.moment()));
    }

    /// Notes that a request reads the state that an earlier read has seen, as of the time of that.
    pub fn note_snapshot_time(&mut self, request: RequestId, now: Millis) {
        self.requests[request.0].snapshot_time = Some(now);
    }

    /// The latest time that a wall clock of the system has shown, if somebody has noted that.
    pub fn wall(&self) -> Option<Millis> {
        self.wall
    }

    /// Notes what a wall clock of the system shows.
    pub fn note_wall(&mut self, wall: Millis) {
        self.wall = self.wall.max(Some(wall));
    }

    /// Notes the virtual time of the answers that follow.
    pub fn note_now(&mut self, now: Micros) {
        self.now = now;
    }

    /// Notes an answer. That a request was not sequenced counts as a rejection.
    pub fn answered(
        &mut self,
        request: RequestId,
        status: OutcomeStatus,
        stamp: impl Into<Stamp>,
        reply: &[u8],
    ) {
        self.answered_by((NodeId(0), 0), request, status, stamp.into(), reply);
    }

    /// The same, if it matters which node it was, and in which of its lives.
    pub fn answered_by(
        &mut self,
        answerer: (NodeId, u32),
        request: RequestId,
        status: OutcomeStatus,
        stamp: Stamp,
        reply: &[u8],
    ) {
        let (moment, at, wall) = (self.moment(), self.now, self.wall);
        let request = &mut self.requests[request.0];
        match status {
            OutcomeStatus::Busy | OutcomeStatus::Refused => request.rejections += 1,
            // Says nothing of what the request came to.
            OutcomeStatus::Superseded => {}
            OutcomeStatus::Unknown | OutcomeStatus::TooOld | OutcomeStatus::Moved => request.unknowns += 1,
            OutcomeStatus::Committed | OutcomeStatus::Aborted(_) => {
                let (has_reached, reply) = (true, reply.to_vec());
                request.answers.push(Answer {
                    moment,
                    at,
                    answerer,
                    has_reached,
                    status,
                    stamp,
                    reply,
                    wall,
                });
            }
        }
    }

    /// The last answer to a request has not reached its client.
    pub fn missed(&mut self, request: RequestId) {
        if let Some(answer) = self.requests[request.0].answers.last_mut() {
            answer.has_reached = false;
        }
    }

    /// Takes back answers that need not hold: the ends of their requests are unknown then.
    pub fn void(&mut self, is_void: impl Fn(&Answer) -> bool) -> usize {
        let mut voided = 0;
        for request in &mut self.requests {
            let before = request.answers.len();
            request.answers.retain(|answer| !is_void(answer));
            let fewer = before - request.answers.len();
            request.unknowns += fewer as u32;
            voided += fewer;
        }
        voided
    }

    /// Forgets answers that another judge has judged: nobody knows the ends of their requests then.
    pub fn forget(&mut self, is_judged: impl Fn(RequestId, &Answer) -> bool) {
        for (number, request) in self.requests.iter_mut().enumerate() {
            let before = request.answers.len();
            request.answers.retain(|answer| !is_judged(RequestId(number), answer));
            request.unknowns += (before - request.answers.len()) as u32;
        }
    }

    /// The requests, in order.
    pub fn requests(&self) -> impl Iterator<Item = (RequestId, &Request)> {
        self.requests.iter().enumerate().map(|(i, r)| (RequestId(i), r))
    }

    /// Every answer, with its request.
    pub fn answers(&self) -> impl Iterator<Item = (RequestId, &Request, &Answer)> {
        self.requests().flat_map(|(id, request)| request.answers.iter().map(move |a| (id, request, a)))
    }

    /// One request.
    pub fn get(&self, request: RequestId) -> &Request {
        &self.requests[request.0]
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    fn moment(&mut self) -> Moment {
        self.moments += 1;
        Moment(self.moments)
    }
}
