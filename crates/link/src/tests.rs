//! A link is held to its promise over the worst of carriers: frames of any age come in any order, any number of times
//! or never, while both sides crash and overflow.

use proptest::prelude::*;

use super::*;

/// As many messages of one byte each.
const ROOM: Room = Room { parted: LARGEST, open: LARGEST + 4 };

/// A message: the sender's end when it was sent, and its number in the stream that the sender believes in.
type Message = (End, u64);

/// One node: its link, and what its roles know.
struct Side {
    link: Link<Message>,
    /// Messages accepted since this side's last `Fresh`.
    sent: u64,
    /// Whose messages are being received, and how many of them have been.
    from: Option<End>,
    received: u64,
    /// Told `Lost`, and not yet that it is over.
    is_lost: bool,
    freshes: usize,
}

impl Side {
    fn new(life: u64) -> Side {
        let mut link = Link::new(Life(life), ROOM);
        link.connected();
        Side { link, sent: 0, from: None, received: 0, is_lost: false, freshes: 0 }
    }

    fn send(&mut self) {
        let number = self.sent + 1;
        if self.link.send((self.link.end(), number), 1) {
            self.sent = number;
        }
    }
}

/// Two sides and every frame that was ever under way, by its receiver.
struct World {
    sides: [Side; 2],
    frames: [Vec<Frame<Message>>; 2],
    /// Ends whose messages have been received by a stream that is over.
    over: Vec<End>,
    lives: u64,
}

impl World {
    fn new() -> World {
        World { sides: [Side::new(1), Side::new(2)], frames: [vec![], vec![]], over: vec![], lives: 2 }
    }

    fn poll(&mut self, side: usize) -> usize {
        let link = &mut self.sides[side].link;
        let frames = std::iter::from_fn(|| link.poll().or_else(|| link.poll_ack()));
        let old = self.frames[1 - side].len();
        self.frames[1 - side].extend(frames);
        self.frames[1 - side].len() - old
    }

    fn crash(&mut self, side: usize) {
        self.lives += 1;
        let old = std::mem::replace(&mut self.sides[side], Side::new(self.lives));
        self.over.extend(old.from);
    }

    fn deliver(&mut self, side: usize, frame: Frame<Message>) -> Result<(), TestCaseError> {
        let end = self.sides[side].link.end();
        let it = &mut self.sides[side];
        let number = if let Frame::Data { sequence, .. } = frame { sequence } else { 0 };
        match it.link.receive(frame) {
            Received::Nothing => {}
            Received::Gap => prop_assert!(number > it.received + 1, "nothing is missing"),
            Received::Message((from, number)) => {
                prop_assert!(it.freshes > 0 && !it.is_lost, "a message outside of a stream");
                prop_assert!(!self.over.contains(&from), "a message of a stream that is over");
                prop_assert_eq!(*it.from.get_or_insert(from), from, "messages of two streams in one");
                prop_assert_eq!(number, it.received + 1, "lost, doubled or out of order");
                it.received = number;
            }
            Received::Change(PeerState::Fresh) => {
                self.over.extend(it.from.take());
                (it.received, it.sent) = (0, 0);
                it.is_lost = false;
                it.freshes += 1;
            }
            Received::Change(PeerState::Back) => {
                prop_assert!(it.is_lost, "back without having been lost");
                prop_assert_eq!(it.link.end(), end);
                it.is_lost = false;
            }
            Received::Change(PeerState::Lost) => prop_assert!(false, "a frame says lost"),
        }
        Ok(())
    }

    /// From now on everything arrives at once and in order, but what is older than this is lost.
    fn heal(&mut self) -> Result<(), TestCaseError> {
        self.sides.iter_mut().for_each(|side| side.link.connected());
        for _ in 0..20 {
            self.sides.iter_mut().for_each(|side| side.link.resend());
            while self.poll(0) + self.poll(1) > 0 {
                for side in 0..2 {
                    let new = self.frames[side].split_off(0);
                    for frame in new {
                        self.deliver(side, frame)?;
                    }
                }
            }
        }
        for (one, other) in [(0, 1), (1, 0)] {
            let (sender, receiver) = (&self.sides[one], &self.sides[other]);
            prop_assert!(sender.link.is_joined() && !sender.is_lost && !sender.link.is_waiting());
            prop_assert_eq!(sender.link.bytes(), 0);
            prop_assert_eq!(receiver.received, sender.sent, "a loss that nobody was told of");
            prop_assert!(sender.sent == 0 || receiver.from == Some(sender.link.end()));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize),
    Poll(usize),
    /// One of the frames that ever were, counted from the newest; true: it will not come again.
    Deliver(usize, prop::sample::Index, bool),
    Next(usize),
    Resend(usize),
    Connected(usize),
    Parted(usize),
    Lost(usize),
    Crash(usize),
}

fn steps(crashes: u32, sends: u32) -> impl Strategy<Value = Vec<Step>> {
    let side = 0usize..2;
    let step = prop_oneof![
        sends => side.clone().prop_map(Step::Send),
        8 => side.clone().prop_map(Step::Poll),
        8 => (side.clone(), any::<prop::sample::Index>(), any::<bool>()).prop_map(|(s, i, b)| Step::Deliver(s, i, b)),
        16 => side.clone().prop_map(Step::Next),
        3 => side.clone().prop_map(Step::Resend),
        2 => side.clone().prop_map(Step::Connected),
        1 => side.clone().prop_map(Step::Parted),
        1 => side.clone().prop_map(Step::Lost),
        crashes => side.prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 0..300)
}

fn run(steps: Vec<Step>) -> Result<World, TestCaseError> {
    let mut world = World::new();
    for step in steps {
        match step {
            Step::Send(side) => world.sides[side].send(),
            Step::Poll(side) => drop(world.poll(side)),
            Step::Deliver(side, index, remove) => {
                let frames = &mut world.frames[side];
                if !frames.is_empty() {
                    let index = index.index(frames.len());
                    let frame = if remove { frames.remove(index) } else { frames[index].clone() };
                    world.deliver(side, frame)?;
                }
            }
            Step::Next(side) => {
                world.poll(1 - side);
                if !world.frames[side].is_empty() {
                    let frame = world.frames[side].remove(0);
                    world.deliver(side, frame)?;
                }
            }
            Step::Resend(side) => world.sides[side].link.resend(),
            Step::Connected(side) => world.sides[side].link.connected(),
            Step::Parted(side) => world.sides[side].link.parted(),
            Step::Lost(side) => {
                let said = world.sides[side].link.lost();
                prop_assert_eq!(said.is_some(), !world.sides[side].is_lost);
                world.sides[side].is_lost = true;
            }
            Step::Crash(side) => world.crash(side),
        }
    }
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_stream_keeps_its_promise_whatever_happens(steps in steps(1, 8)) {
        let mut world = run(steps)?;
        let old = world.frames.clone();
        world.frames = [vec![], vec![]];
        world.heal()?;
        // And none of the frames that ever were disturbs it now.
        let freshes = [0, 1].map(|side| world.sides[side].freshes);
        for (side, frames) in old.into_iter().enumerate() {
            for frame in frames.into_iter().rev() {
                world.deliver(side, frame)?;
            }
        }
        for side in &mut world.sides {
            side.send();
        }
        world.heal()?;
        prop_assert_eq!([0, 1].map(|side| world.sides[side].freshes), freshes);
        prop_assert!(world.sides.iter().all(|side| side.received > 0));
    }

    #[test]
    fn without_crash_and_overflow_there_is_one_stream(steps in steps(0, 0), sends in prop::collection::vec(0usize..2, 0..ROOM.parted)) {
        let mut steps = steps;
        for (at, side) in sends.into_iter().enumerate() {
            steps.insert((at * 37).min(steps.len()), Step::Send(side));
        }
        let mut world = run(steps)?;
        world.heal()?;
        prop_assert_eq!(world.sides.map(|side| side.freshes), [1, 1]);
    }
}

/// Carries everything between two links until neither has anything to say; answers what each has received.
fn exchange(links: &mut [Link<u64>; 2]) -> [Vec<Received<u64>>; 2] {
    let mut seen = [vec![], vec![]];
    let mut is_moving = true;
    while std::mem::take(&mut is_moving) {
        for side in 0..2 {
            while let Some(frame) = links[side].poll().or_else(|| links[side].poll_ack()) {
                is_moving = true;
                seen[1 - side].push(links[1 - side].receive(frame));
            }
        }
    }
    seen.map(|seen| seen.into_iter().filter(|received| *received != Received::Nothing).collect())
}

fn met() -> [Link<u64>; 2] {
    let room = Room { parted: 100, open: 200 };
    let mut links = [Link::new(Life(7), room), Link::new(Life(3), room)];
    links.iter_mut().for_each(Link::connected);
    assert_eq!(
        exchange(&mut links),
        [[Received::Change(PeerState::Fresh)], [Received::Change(PeerState::Fresh)]]
    );
    links
}

#[test]
fn what_was_under_way_when_a_connection_broke_goes_on_over_the_next() {
    let mut links = met();
    assert!(links[0].send(1, 10) && links[0].send(2, 10));
    assert!(links[0].poll().is_some());
    links.iter_mut().for_each(Link::parted);
    assert!(links[0].send(3, 10));
    assert_eq!((links[0].poll(), links[0].bytes()), (None, 30));
    assert_eq!((links[1].lost(), links[1].lost()), (Some(PeerState::Lost), None));
    links.iter_mut().for_each(Link::connected);
    let all = [1, 2, 3].map(Received::Message);
    let [none, seen] = exchange(&mut links);
    assert_eq!(none, []);
    assert_eq!(seen, [&[Received::Change(PeerState::Back)], &all[..]].concat());
    assert_eq!(links[0].bytes(), 0);
}

#[test]
fn an_acknowledgement_waits_for_a_message_that_carries_it() {
    let mut links = met();
    assert!(links[0].send(1, 10) && links[1].send(2, 10));
    let message = links[0].poll().unwrap();
    assert_eq!(links[1].receive(message), Received::Message(1));
    let answer = links[1].poll().unwrap();
    assert_eq!((links[1].poll(), links[1].poll_ack()), (None, None), "the message has carried it");
    assert_eq!(links[0].receive(answer), Received::Message(2));
    assert_eq!((links[0].bytes(), links[1].bytes()), (0, 10));
    assert_eq!(links[0].poll(), None, "alone it leaves only if asked for");
    let ack = links[0].poll_ack().unwrap();
    assert_eq!((links[1].receive(ack), links[1].bytes()), (Received::Nothing, 0));
}

#[test]
fn more_than_there_is_room_for_ends_the_stream_for_both() {
    let mut links = met();
    links.iter_mut().for_each(Link::parted);
    // However large, each counts for an eighth.
    assert!((0..8).all(|number| links[0].send(number, 1000)) && links[1].send(9, 10));
    assert!(!links[0].send(8, 12) && !links[0].send(9, 1));
    links.iter_mut().for_each(Link::connected);
    assert_eq!(
        exchange(&mut links),
        [[Received::Change(PeerState::Fresh)], [Received::Change(PeerState::Fresh)]]
    );
    assert!(links[0].send(4, 60));
    assert_eq!(exchange(&mut links), [vec![], vec![Received::Message(4)]]);
}

#[test]
fn there_is_more_room_while_the_other_side_takes_what_comes() {
    let mut links = met();
    assert!((0..10).all(|number| links[0].send(number, 12)));
    let all: Vec<_> = (0..10).map(Received::Message).collect();
    assert_eq!(exchange(&mut links), [vec![], all]);
    // Away, it is kept as much for as for anybody.
    assert!((0..10).all(|number| links[0].send(number, 12)));
    links.iter_mut().for_each(Link::parted);
    assert!(!links[0].send(10, 12));
}

#[test]
fn a_stream_that_ends_on_a_living_connection_begins_anew_on_it() {
    let mut links = met();
    assert!(links[1].send(1, 10) && (0..16).all(|number| links[0].send(number, 12)));
    assert!(!links[0].send(16, 12));
    let fresh = [Received::Change(PeerState::Fresh)];
    assert_eq!(exchange(&mut links), [fresh.clone(), fresh]);
}

#[test]
fn a_restart_ends_the_stream_for_both_and_the_dead_are_not_believed() {
    let mut links = met();
    let mut dead = links[1].clone();
    dead.connected();
    links[1] = Link::new(Life(9), Room { parted: 100, open: 200 });
    links[1].connected();
    let fresh = [Received::Change(PeerState::Fresh)];
    assert_eq!(exchange(&mut links), [fresh.clone(), fresh]);
    let late = dead.poll().unwrap();
    assert_eq!(links[0].receive(late), Received::Nothing);
    assert!(links[0].send(1, 1));
    assert_eq!(exchange(&mut links), [vec![], vec![Received::Message(1)]]);
}

#[test]
fn a_link_that_counts_wrong_or_keeps_for_no_stream_is_found() {
    let room = Room { parted: 800, open: 1600 };
    let broken = |change: &dyn Fn(&mut Link<u8>)| {
        let (mut here, mut there) = (Link::new(Life(1), room), Link::new(Life(2), room));
        here.connected();
        there.connected();
        while let Some(frame) = here.poll() {
            there.receive(frame);
            while let Some(frame) = there.poll() {
                here.receive(frame);
            }
        }
        assert!(here.is_joined() && here.send(7, 10));
        assert_eq!(here.check(), Ok(()));
        change(&mut here);
        here.check().unwrap_err()
    };
    assert!(broken(&|link| link.bytes = 11).contains("10 bytes are kept, and 11 counted"));
    assert!(broken(&|link| link.sent = 2).contains("2 messages were sent of 1"));
    assert!(broken(&|link| link.room = Room { parted: 4, open: 8 }).contains("room for 8"));
    assert!(broken(&|link| link.bond = None).contains("for no stream"));
    assert!(broken(&|link| link.is_connected = false).contains("open without a connection"));
}
