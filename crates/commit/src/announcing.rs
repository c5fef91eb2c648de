//! Announcements: what homes tell others of their decisions (Propagate, sheet fwkv.md, 4.9 and 4.10), and what is heard of it.
//!
//! A home tells each other partition the number up to which it has decided, as far as that partition has acknowledged the decisions that
//! concern it. The receiver writes that into its log; only then it counts. A message that is lost is said again with the next leader or
//! stream, so nobody waits for a gap to close.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_model::{GcIds, Install, Micros, PartitionId};

use crate::concurrency::Snapshots;
use crate::coordinator::Unacknowledged;
use crate::desk::Desk;
use crate::entry::{Announced, Content};
use crate::known::Readers;
use crate::message::Protocol;

/// Others are told of decisions this often at most.
const EVERY: Micros = Micros::from_millis(1);
/// Others are told of readers that are over so late, unless something was decided.
const LATER: Micros = Micros::from_millis(100);

/// True if the node leads in the term that its log has: it may have heard of a successor's decisions before it hears that it leads no more.
fn speaks(desk: &Desk<'_>) -> bool {
    desk.lead.is_some_and(|lead| lead.term == desk.agreed.term())
}

/// The transactions of a home under way that only read, where others' writes name them.
#[derive(Debug, Default)]
pub struct Reading {
    live: BTreeSet<u64>,
    /// The count of those that are over.
    ended: u64,
}

impl Reading {
    /// A transaction is under way. Its further attempts are the same reader.
    pub fn begin(&mut self, number: u64) {
        self.live.insert(number);
    }

    /// A transaction is over, if it was one of them.
    pub fn end(&mut self, number: u64) {
        self.ended += u64::from(self.live.remove(&number));
    }

    /// The lowest number of one, or that of the next transaction.
    pub fn lowest(&self, next: u64) -> u64 {
        self.live.first().copied().unwrap_or(next)
    }

    /// True if a transaction under way is one of them.
    pub fn has(&self, number: u64) -> bool {
        self.live.contains(&number)
    }

    /// Their numbers.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.live.iter().copied()
    }

    /// A number that rises when others have to be told of more that are over.
    fn over(&self, gc_ids: GcIds, next: u64) -> u64 {
        match gc_ids {
            GcIds::Watermark => self.lowest(next),
            // In a new term there is news, as all readers of the one before are over.
            GcIds::Remove => self.ended + 1,
        }
    }

    /// The word for others.
    fn word(&self, gc_ids: GcIds, next: u64) -> Readers {
        match gc_ids {
            GcIds::Watermark => Readers::from(self.lowest(next)),
            GcIds::Remove => Readers::among(&self.live, next),
        }
    }
}

/// The sending side.
#[derive(Debug, Default)]
pub struct Announcing {
    /// Numbers of decisions, with the times from which on others may be told of them.
    waiting: VecDeque<(Micros, u64)>,
    /// Others may be told up to here.
    may_tell: u64,
    /// The numbers that each partition was told of: that of what it has installed, and that of what is decided.
    told: BTreeMap<PartitionId, (u64, u64)>,
    /// Readers that are over: as far as others were told of them, and when they are told of more.
    over: (u64, Option<Micros>),
    /// The word for this partition's own log of readers that are over.
    own: Option<Announced>,
    /// Something was decided, acknowledged or lost since they were told.
    is_news: bool,
    next: Micros,
}

impl Announcing {
    /// The node serves its partition no more.
    pub fn stand(&mut self) {
        *self = Announcing::default();
    }

    /// Messages to a partition may be lost.
    pub fn disturbed(&mut self, partition: PartitionId) {
        self.told.remove(&partition);
        (self.is_news, self.over) = (self.may_tell > 0, (0, self.over.1));
    }

    /// A partition has acknowledged a decision.
    pub fn acknowledged(&mut self) {
        self.is_news = self.may_tell > 0;
    }

    /// Takes note of what was decided in this turn, and of readers that are over. The next transaction has the number beside them.
    pub fn note(&mut self, (readers, next): (&Reading, u64), desk: &Desk<'_>) {
        let is_of_interest = desk.site.snapshots != Snapshots::Never && speaks(desk);
        let number = desk.agreed.heard().of(desk.site.partition);
        let last = self.waiting.back().map_or(self.may_tell, |(_, last)| *last);
        if !is_of_interest {
            return;
        }
        if number > last && desk.site.layout.partitions() > 1 {
            let at = desk.elapsed().plus(desk.site.propagation.delay);
            self.waiting.push_back((at, number));
        }
        if readers.over(desk.site.propagation.gc_ids, next) > self.over.0
            && desk.site.snapshots == Snapshots::AtFirstRead
        {
            let later = match desk.site.propagation.gc_ids {
                GcIds::Watermark => LATER,
                GcIds::Remove => Micros(0),
            };
            self.over.1.get_or_insert(desk.elapsed().plus(later));
        }
    }

    /// Takes what this partition's own log has to know: its decisions tell it of that only while there are some.
    pub const fn take_own(&mut self) -> Option<Announced> {
        self.own.take()
    }

    /// The number of announcements that are to come: decisions that others may not be told of yet, and one for news.
    pub fn untold(&self) -> usize {
        self.waiting.len() + usize::from(self.is_news)
    }

    /// The time at which others are told, if there is something to tell.
    pub fn due(&self) -> Option<Micros> {
        let news = self.is_news.then_some(Micros(0));
        let waiting = self.waiting.front().map(|(at, _)| *at);
        let first = [news, waiting, self.over.1].into_iter().flatten().min();
        first.map(|at| at.max(self.next))
    }

    /// Tells the others, if it is time.
    pub fn pass(
        &mut self,
        (reading, next): (&Reading, u64),
        unacknowledged: &Unacknowledged,
        desk: &mut Desk<'_>,
    ) {
        if self.due().is_none_or(|due| due > desk.elapsed()) || !speaks(desk) {
            return;
        }
        while let Some((_, number)) = self.waiting.pop_front_if(|(at, _)| *at <= desk.elapsed()) {
            self.may_tell = number;
        }
        let tells_over = self.over.1.take_if(|at| *at <= desk.elapsed()).is_some();
        let gc_ids = desk.site.propagation.gc_ids;
        let readers = reading.word(gc_ids, next);
        if let Some(home) = desk.lead.filter(|_| tells_over) {
            self.over.0 = reading.over(gc_ids, next);
            self.own = Some(Announced { home, number: 0, readers: readers.clone() });
        }
        (self.is_news, self.next) = (false, desk.elapsed().plus(EVERY));
        let in_order = desk.site.propagation.install == Install::Paper;
        for partition in (0..desk.site.layout.partitions()).map(PartitionId) {
            let number =
                unacknowledged.first(partition).map_or(u64::MAX, |first| first - 1).min(self.may_tell);
            let (told, decided) = self.told.get(&partition).copied().unwrap_or_default();
            let is_news = number > told || tells_over || in_order && self.may_tell > decided;
            let numbers = (number.max(told), self.may_tell.max(decided));
            if partition != desk.site.partition
                && is_news
                && desk.tell_manager(partition, Protocol::Announce(numbers.0, numbers.1, readers.clone()))
            {
                self.told.insert(partition, numbers);
            }
        }
    }
}

/// The receiving side.
#[derive(Debug, Default)]
pub struct Hearing {
    /// The words of homes that are not in the log.
    heard: BTreeMap<PartitionId, Announced>,
    /// An entry is on its way into the log.
    is_appended: bool,
}

impl Hearing {
    /// A home has said how far it is.
    pub fn hear(&mut self, said: Announced) {
        let Some(known) = self.heard.get_mut(&said.home.partition) else {
            self.heard.insert(said.home.partition, said);
            return;
        };
        known.number = known.number.max(said.number);
        match said.home.term.cmp(&known.home.term) {
            Ordering::Less => {}
            Ordering::Equal => known.readers.join(&said.readers),
            Ordering::Greater => (known.home, known.readers) = (said.home, said.readers),
        }
    }

    /// The number of homes whose words are not in the log, and one for an entry on its way there.
    pub fn unwritten_words(&self) -> usize {
        self.heard.len() + usize::from(self.is_appended)
    }

    /// Appends what was heard, unless an entry is on its way: what is heard meanwhile goes together.
    pub fn append(&mut self, desk: &mut Desk<'_>) {
        if self.is_appended || self.heard.is_empty() || desk.lead.is_none() || desk.appender.is_full() {
            return;
        }
        self.is_appended = true;
        let said = std::mem::take(&mut self.heard).into_values().collect();
        desk.append(desk.clock, Content::Announce(said));
    }

    /// The entry is in the log.
    pub fn ended(&mut self) {
        self.is_appended = false;
    }

    /// The entry is not in the log and never will be.
    pub fn unwritten(&mut self, said: &[Announced]) {
        self.is_appended = false;
        said.iter().for_each(|said| self.hear(said.clone()));
    }

    /// The node serves its partition no more.
    pub fn stand(&mut self) {
        *self = Hearing::default();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::{Epoch, Millis};
    use ordain_role::NodeId;

    use super::*;
    use crate::bench::Bench;
    use crate::entry::{Commit, Entry};
    use crate::ids::{AttemptId, Lead, Term, TransactionId};
    use crate::message::{Message, Termed};
    use crate::view::{Seen, View};

    const OWN: PartitionId = PartitionId(0);
    const OTHER: PartitionId = PartitionId(1);

    fn lead(partition: PartitionId) -> Lead {
        Lead { partition, term: Term(1) }
    }

    fn who(number: u64) -> AttemptId {
        AttemptId { transaction: TransactionId { home: lead(OWN), number }, attempt: 1 }
    }

    /// The leader of the first of several partitions.
    struct Home {
        at: Bench,
        announcing: Announcing,
        unacknowledged: Unacknowledged,
    }

    impl Home {
        fn new(delay: u64) -> Home {
            let mut at = Bench::new(0);
            (at.site.snapshots, at.site.propagation.delay) = (Snapshots::AtBegin, Micros(delay));
            at.lead = Some(lead(OWN));
            at.leaders.note(lead(OWN), NodeId(0));
            at.leaders.note(lead(OTHER), NodeId(1));
            let home =
                Home { at, announcing: Announcing::default(), unacknowledged: Unacknowledged::default() };
            home.applying(1, Content::Begin)
        }

        fn applying(mut self, place: u64, content: Content) -> Home {
            self.apply(place, content);
            self
        }

        fn apply(&mut self, place: u64, content: Content) {
            let entry = Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None };
            self.at.agreed.apply(&Arc::new(entry)).unwrap();
            self.at.tell(|desk| self.announcing.note((&Reading::default(), 0), desk));
        }

        /// Decides; with another participant or alone.
        fn commit(&mut self, place: u64, participants: Vec<PartitionId>) {
            let (attempt, view) = (who(place), View::of(Seen::NOTHING));
            self.unacknowledged.add(attempt, place, participants.iter().copied().collect());
            let commit = Commit { attempt, view, participants, ..Commit::default() };
            self.apply(place, Content::Commit(commit));
        }

        /// The numbers that the other partition is told at a time, of what it has installed.
        fn told(&mut self, micros: u64) -> Vec<u64> {
            self.words(micros).into_iter().map(|(number, _)| number).collect()
        }

        fn words(&mut self, micros: u64) -> Vec<(u64, u64)> {
            self.at.elapsed = Micros(micros);
            let Home { at, announcing, unacknowledged } = self;
            let sends =
                at.tell(|desk| announcing.pass((&Reading::default(), 0), unacknowledged, desk)).into_iter();
            let number = |(_, message)| match message {
                Message::Termed(Termed { to, content: Protocol::Announce(number, decided, _), .. }) => {
                    assert_eq!(to, lead(OTHER));
                    (number, decided)
                }
                other => panic!("{other:?}"),
            };
            sends.map(number).collect()
        }
    }

    #[test]
    fn a_partition_is_told_what_it_has_installed_or_takes_no_part_in() {
        let mut home = Home::new(0);
        assert_eq!(home.told(0), []);
        home.commit(5, vec![]);
        assert_eq!((home.told(0), home.told(5_000)), (vec![5], vec![]), "once");
        home.commit(6, vec![OTHER]);
        home.commit(9, vec![]);
        assert_eq!(home.told(9_000), [], "it does not know 6");
        assert!(home.unacknowledged.acknowledge(who(6), OTHER));
        home.announcing.acknowledged();
        assert_eq!(home.told(10_500), [9]);
        home.announcing.disturbed(OTHER);
        assert_eq!(home.told(20_000), [9], "its next leader may not know it");
    }

    /// Option `install=paper`: what is decided is told though the receiver has not installed what concerns it.
    #[test]
    fn others_are_told_of_all_decisions_where_they_install_in_order() {
        for (install, expected) in [(Install::Decoupled, vec![]), (Install::Paper, vec![(4, 6)])] {
            let mut home = Home::new(0);
            home.at.site.propagation.install = install;
            home.commit(5, vec![OTHER]);
            assert_eq!(home.words(0), [(4, 5)]);
            home.commit(6, vec![]);
            assert_eq!(home.words(5_000), expected);
            assert_eq!(home.words(9_000), [], "once");
        }
    }

    #[test]
    fn others_are_told_as_late_as_the_option_says() {
        let mut home = Home::new(7_000);
        home.commit(5, vec![]);
        home.at.elapsed = Micros(3_000);
        home.commit(6, vec![]);
        assert_eq!((home.announcing.due(), home.announcing.untold()), (Some(Micros(7_000)), 2));
        assert_eq!((home.told(6_999), home.told(7_000), home.told(9_999)), (vec![], vec![5], vec![]));
        assert_eq!((home.announcing.untold(), home.told(10_000), home.announcing.untold()), (1, vec![6], 0));
    }

    /// A deposed leader's log may have decisions of its successor, of which it does not know who has acknowledged them.
    #[test]
    fn a_leader_announces_nothing_of_a_later_term() {
        let mut home = Home::new(0);
        home.commit(5, vec![]);
        let entry =
            Entry { place: Epoch(6), term: Term(2), now: Millis(0), content: Content::Begin, agreed: None };
        home.at.agreed.apply(&Arc::new(entry)).unwrap();
        home.at.tell(|desk| home.announcing.note((&Reading::default(), 0), desk));
        assert_eq!(home.told(9_000), []);
    }

    #[test]
    fn what_was_heard_goes_into_the_log_once() {
        let mut at = Bench::new(0);
        at.lead = Some(lead(OWN));
        let mut hearing = Hearing::default();
        let append = |hearing: &mut Hearing, at: &mut Bench| -> Vec<Announced> {
            let sends = at.tell(|desk| hearing.append(desk)).into_iter();
            let said = sends.map(|(_, message)| match message {
                Message::Log(ordain_replication::Log::Append(entry)) => match &entry.content {
                    Content::Announce(said) => said.clone(),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            });
            said.flatten().collect()
        };
        let said = |number, low| Announced { home: lead(OTHER), number, readers: Readers::from(low) };
        assert_eq!(append(&mut hearing, &mut at), []);
        hearing.hear(said(7, 2));
        hearing.hear(said(5, 3));
        assert_eq!(
            (append(&mut hearing, &mut at), append(&mut hearing, &mut at)),
            (vec![said(7, 3)], vec![])
        );
        assert_eq!(hearing.unwritten_words(), 1);
        hearing.hear(said(8, 3));
        assert_eq!(append(&mut hearing, &mut at), [], "one is on its way");
        assert_eq!(hearing.unwritten_words(), 2);
        hearing.ended();
        assert_eq!(append(&mut hearing, &mut at), [said(8, 3)], "it came meanwhile");
        hearing.unwritten(&[said(8, 3)]);
        assert_eq!(append(&mut hearing, &mut at), [said(8, 3)], "there was no space");
        hearing.ended();
        at.appender.set_full(true);
        hearing.hear(said(9, 3));
        assert_eq!(append(&mut hearing, &mut at), []);
    }

    /// Option `gc-ids=remove`: one that lasts does not hold back the others.
    #[test]
    fn others_are_told_at_once_which_readers_are_under_way_if_it_is_asked_for() {
        let mut home = Home::new(0);
        home.at.site.snapshots = Snapshots::AtFirstRead;
        home.at.site.propagation.gc_ids = GcIds::Remove;
        let mut readers = Reading::default();
        (3..=5).for_each(|number| readers.begin(number));
        let Home { at, announcing, unacknowledged } = &mut home;
        at.tell(|desk| announcing.note((&readers, 6), desk));
        assert_eq!(announcing.due(), Some(Micros(0)), "those of the term before are over");
        at.tell(|desk| announcing.pass((&readers, 6), unacknowledged, desk));
        assert_eq!(
            announcing.take_own().map(|said| said.readers),
            Some(Readers::among(&[3, 4, 5].into(), 6))
        );
        at.tell(|desk| announcing.note((&readers, 6), desk));
        assert_eq!(announcing.due(), None, "none is over");
        readers.end(4);
        readers.end(9);
        at.tell(|desk| announcing.note((&readers, 6), desk));
        assert_eq!(announcing.due(), Some(EVERY));
        at.elapsed = EVERY;
        let sends = at.tell(|desk| announcing.pass((&readers, 6), unacknowledged, desk));
        let expected = Readers::among(&[3, 5].into(), 6);
        let said = |(_, message): &(_, Message)| match message {
            Message::Termed(Termed { content: Protocol::Announce(_, _, word), .. }) => *word == expected,
            _ => false,
        };
        assert_eq!(sends.iter().filter(|sent| said(sent)).count(), 1);
        assert_eq!(announcing.take_own().map(|said| said.readers), Some(expected.clone()));
        at.tell(|desk| announcing.note((&readers, 6), desk));
        assert_eq!(announcing.due(), None, "once");
    }

    /// Sheet fwkv.md, E8: sets of readers become empty though nothing is decided any more.
    #[test]
    fn others_are_told_of_readers_that_are_over() {
        let mut home = Home::new(0);
        home.at.site.snapshots = Snapshots::AtFirstRead;
        home.at.tell(|desk| home.announcing.note((&Reading::default(), 6), desk));
        assert_eq!(home.announcing.due(), Some(LATER));
        home.at.elapsed = LATER;
        let Home { at, announcing, unacknowledged } = &mut home;
        let sends = at.tell(|desk| announcing.pass((&Reading::default(), 6), unacknowledged, desk));
        let low = |(_, message): &(_, Message)| {
            let Message::Termed(Termed { content: Protocol::Announce(_, _, readers), .. }) = message else {
                return false;
            };
            *readers == Readers::from(6)
        };
        assert_eq!(sends.iter().filter(|sent| low(sent)).count(), 1);
        let own = announcing.take_own().map(|said| (said.home.partition, said.readers));
        assert_eq!(own, Some((OWN, Readers::from(6))), "and its own log");
        at.tell(|desk| announcing.note((&Reading::default(), 6), desk));
        assert_eq!(announcing.due(), None, "once");
    }
}
