//! Changes are undone as they were, and what is kept for that is bounded.

use proptest::prelude::*;

use super::journal::{COPIED_MAX, INVERSE_BYTES};
use super::*;
use crate::expiry::StringForm;

#[test]
fn rolling_back_restores_every_kind_of_change() {
    let mut cell = Cell::ABSENT;
    let (mut changed, mut journal) = (false, Journal::default());
    let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0)));
    m.set_field(b"a", b"1");
    m.set_field(b"b", b"2");
    let mark = 3;
    let before = m.clone();
    m.set_field(b"a", b"9");
    m.remove_field(b"b");
    m.set_expiry(Millis(7));
    m.remove_field(b"a");
    assert!(m.value.is_none());
    m.change_string(|s| s.extend_from_slice(b"now a string"));
    journal.roll_back(mark, |_, undo| undo(&mut cell));
    assert_eq!(cell, before);
    journal.roll_back(0, |_, undo| undo(&mut cell));
    assert_eq!(cell, Cell::ABSENT);
    assert!(changed);
}

#[test]
fn what_is_set_aside_and_added_again_is_the_newest() {
    let cells = [&b"first"[..], b"second"]
        .map(|text| Cell { value: Some(Value::String(text.to_vec())), expires_at: Millis(0).into() });
    let (mut now, mut journal) = (cells.clone(), Journal::default());
    let change = |journal: &mut Journal, now: &mut [Cell; 2], at: usize, text: &[u8]| {
        let mut changed = false;
        let mut m = CellMut::new(&mut now[at], &mut changed, Some((journal, at as u32)));
        m.put_string(text);
    };
    change(&mut journal, &mut now, 0, b"a");
    change(&mut journal, &mut now, 1, b"b");
    let all = journal.bytes();
    let mut aside = journal.split_off(1);
    assert_eq!(journal.bytes() + aside.bytes(), all);
    change(&mut journal, &mut now, 0, b"a longer one than before");
    let mark = journal.mark();
    journal.append(&mut aside);
    journal.roll_back(mark, |tag, undo| undo(&mut now[tag as usize]));
    assert_eq!(
        (now[0].string(), now[1].string()),
        (Some(&b"a longer one than before"[..]), Some(&b"second"[..]))
    );
    journal.roll_back(0, |tag, undo| undo(&mut now[tag as usize]));
    assert_eq!(now, cells);
}

#[test]
fn a_whole_journal_keeps_one_image_of_a_cell() {
    let start = Cell { value: Some(Value::String(vec![1; 10_000])), expires_at: Millis(9).into() };
    let (mut cell, mut changed, mut journal) = (start.clone(), false, Journal::whole());
    let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 70)));
    m.change_string(|bytes| bytes[3] = 2);
    let once = INVERSE_BYTES + 10_000;
    for _ in 0..100 {
        m.change_string(|bytes| bytes.push(2));
        m.set_expiry(Millis(7));
        m.delete();
        m.put_string(b"another");
    }
    let mut other = Cell::ABSENT;
    CellMut::new(&mut other, &mut changed, Some((&mut journal, 3))).set_field(b"f", b"1");
    assert_eq!((journal.mark(), journal.bytes()), (2, once + INVERSE_BYTES));
    journal.roll_back(0, |tag, undo| undo(if tag == 70 { &mut cell } else { &mut other }));
    assert_eq!((cell, other, journal.bytes()), (start, Cell::ABSENT, 0));
    // It begins anew.
    let mut cell = Cell::ABSENT;
    CellMut::new(&mut cell, &mut changed, Some((&mut journal, 70))).put_string(b"x");
    assert_eq!(journal.mark(), 1);
}

#[test]
fn a_string_is_put_in_place_where_it_fits_and_can_be_undone() {
    let start = || Cell { value: Some(Value::String(vec![1; 100])), expires_at: Millis(9).into() };
    for (len, in_place) in [(100, true), (90, true), (101, false), (10, false)] {
        let (mut cell, mut changed) = (start(), false);
        let place = cell.string().map(<[u8]>::as_ptr);
        CellMut::new(&mut cell, &mut changed, None).put_string(&vec![2; len]);
        assert_eq!(cell, Cell { value: Some(Value::String(vec![2; len])), expires_at: Millis(0).into() });
        assert_eq!(cell.string().map(<[u8]>::as_ptr) == place, in_place);
        assert!(changed);
    }
    let place = |cell: &Cell| cell.string().map(<[u8]>::as_ptr);
    for (len, in_place) in [(100, true), (COPIED_MAX, true), (COPIED_MAX + 1, false)] {
        let start = Cell { value: Some(Value::String(vec![1; len])), expires_at: Millis(9).into() };
        let (mut cell, mut changed, mut journal) = (start.clone(), false, Journal::default());
        let lies = place(&cell);
        let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0)));
        m.put_string(&vec![2; len]);
        assert_eq!(place(&m) == lies, in_place);
        let (mark, middle) = (1, m.clone());
        m.change_string(|bytes| bytes.push(3));
        m.put_string(b"another that does not fit");
        journal.roll_back(mark, |_, undo| undo(&mut cell));
        assert_eq!(cell, middle);
        journal.roll_back(0, |_, undo| undo(&mut cell));
        assert_eq!((cell, journal.strings.len()), (start, 0));
    }
}

#[test]
fn what_is_appended_to_a_journal_is_undone_first() {
    let start = Cell { value: Some(Value::String(vec![0; 8])), expires_at: Millis(0).into() };
    let (mut cell, mut changed) = (start.clone(), false);
    let (mut one, mut other) = (Journal::default(), Journal::default());
    let mut put = |journal: &mut Journal, byte: u8| {
        CellMut::new(&mut cell, &mut changed, Some((journal, 0))).put_string(&[byte; 8]);
    };
    put(&mut one, 1);
    put(&mut other, 2);
    put(&mut other, 3);
    one.append(&mut other);
    let mut seen = Vec::new();
    one.roll_back(0, |_, undo| {
        undo(&mut cell);
        seen.push(cell.string().map(|bytes| bytes[0]));
    });
    assert_eq!((seen, cell), (vec![Some(2), Some(1), Some(0)], start));
    assert!(one.strings.is_empty() && other.strings.is_empty());
}

#[derive(Clone, Debug)]
enum Change {
    Set(u8, usize),
    Remove(u8),
    Put(usize),
    Write(usize, usize),
    Resize(usize),
    Form(StringForm),
    Expire(u64),
    Delete,
}

impl Change {
    /// Does it to a record, which holds another type at times.
    fn make(&self, mut cell: CellMut<'_>) {
        let is_string = cell.string().is_some();
        match *self {
            Change::Set(field, len) if !is_string => {
                drop(cell.set_field(&[field, (len % 5) as u8], &vec![field; len]));
            }
            Change::Remove(field) => drop(cell.remove_field(&[field, field % 5])),
            Change::Put(len) => cell.put_string(&vec![7; len]),
            Change::Write(offset, len) if cell.hash().is_none() => cell.write_at(offset, &vec![9; len]),
            Change::Resize(len) if cell.hash().is_none() => cell.change_string(|s| s.resize(len, 8)),
            Change::Form(form) if is_string => cell.set_form(form),
            Change::Expire(at) if cell.value.is_some() => cell.set_expiry(Millis(at)),
            Change::Delete => cell.delete(),
            _ => {}
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        8 => (any::<u8>(), prop_oneof![30 => 0..30_usize, 1 => 60..70_usize]).prop_map(|(field, len)| Change::Set(field, len)),
        4 => any::<u8>().prop_map(Change::Remove),
        1 => (0..2000_usize).prop_map(Change::Put),
        4 => (0..3000_usize, 0..600_usize).prop_map(|(offset, len)| Change::Write(offset, len)),
        1 => (0..2000_usize).prop_map(Change::Resize),
        1 => prop_oneof![Just(StringForm::Whole), Just(StringForm::Text), Just(StringForm::Buffer)]
            .prop_map(Change::Form),
        1 => prop_oneof![0..9_u64, (1_u64 << 62) - 1..=1 << 62].prop_map(Change::Expire),
        1 => Just(Change::Delete),
    ];
    prop::collection::vec(change, 0..60)
}

proptest! {
    /// Undone, a record is what it was to the order of its fields, however its changes are noted, and what is kept for
    /// that is bounded by the largest that it was.
    #[test]
    fn what_is_undone_is_as_it_was(
        fields in 0..600_u32, string in prop::option::of(0..2000_usize), first in changes(), second in changes(),
    ) {
        let mut start = Cell::ABSENT;
        let mut changed = false;
        for field in 0..fields {
            CellMut::new(&mut start, &mut changed, None).set_field(&[field as u8, (field >> 8) as u8, 1], b"value");
        }
        if let Some(len) = string {
            start = Cell { value: Some(Value::String(vec![1; len])), expires_at: Millis(3).into() };
        }
        let (mut each, mut whole) = (start.clone(), start.clone());
        let (mut noting, mut bounded) = (Journal::default(), Journal::whole());
        let mut largest = start.weight();
        for change in &first {
            change.make(CellMut::new(&mut each, &mut changed, Some((&mut noting, 5))));
            change.make(CellMut::new(&mut whole, &mut changed, Some((&mut bounded, 5))));
            largest = largest.max(whole.weight());
        }
        let mark = noting.mark();
        let middle = each.clone();
        prop_assert_eq!(&middle, &whole);
        for change in &second {
            change.make(CellMut::new(&mut each, &mut changed, Some((&mut noting, 5))));
        }
        // Set aside and added again, they are the newest.
        let mut aside = noting.split_off(mark);
        noting.append(&mut aside);
        // Undone one after the other in a copy, which leaves them noted.
        let mut copy = each.clone();
        (mark..noting.mark()).rev().for_each(|at| noting.undo_at(at, &mut copy));
        prop_assert_eq!(&copy, &middle);
        noting.roll_back(mark, |_, undo| undo(&mut each));
        prop_assert_eq!(&each, &middle);
        noting.roll_back(0, |_, undo| undo(&mut each));
        prop_assert_eq!(&each, &start);
        // Inverses up to the weight, the one that exceeds it, and the image.
        let most = 2 * (largest + INVERSE_BYTES) + INVERSE_BYTES + 3000;
        prop_assert!(bounded.bytes() <= most, "{} of {largest}", bounded.bytes());
        bounded.roll_back(0, |_, undo| undo(&mut whole));
        prop_assert_eq!(&whole, &start);
        prop_assert_eq!((bounded.bytes(), bounded.strings.len(), noting.strings.len()), (0, 0, 0));
    }
}

#[test]
fn what_is_written_into_a_long_string_is_no_copy_of_it() {
    let start = Cell { value: Some(Value::String(vec![1; 1 << 20])), expires_at: Millis(9).into() };
    for mut journal in [Journal::whole(), Journal::default()] {
        let (mut cell, mut changed) = (start.clone(), false);
        let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0)));
        m.write_at(1 << 20, b"behind");
        let lies = m.string().map(<[u8]>::as_ptr);
        m.write_at(500, b"over");
        m.write_at((1 << 20) - 2, b"over the end");
        assert_eq!(
            (lies, m.string().map(<[u8]>::len)),
            (m.string().map(<[u8]>::as_ptr), Some((1 << 20) + 10))
        );
        assert!(journal.bytes() <= 3 * INVERSE_BYTES + 16, "{}", journal.bytes());
        journal.roll_back(0, |_, undo| undo(&mut cell));
        assert_eq!(cell, start);
    }
    // One that is made by a write takes no more memory than it needs.
    let (mut cell, mut changed) = (Cell::ABSENT, false);
    CellMut::new(&mut cell, &mut changed, None).write_at(1 << 20, b"x");
    assert_eq!(cell.value.as_ref().map(Value::heap_bytes), Some((1 << 20) + 1));
    cell = Cell { value: Some(Value::String(vec![1])), expires_at: Millis(0).into() };
    CellMut::new(&mut cell, &mut changed, None).write_at(1 << 20, b"x");
    assert_eq!(cell.value.as_ref().map(Value::heap_bytes), Some((1 << 20) + 1));
}

#[test]
fn a_record_that_is_changed_often_is_noted_once() {
    let field = |n: u32| n.to_be_bytes();
    let mut start = Cell::ABSENT;
    let mut changed = false;
    (0..1000).for_each(|n| drop(CellMut::new(&mut start, &mut changed, None).set_field(&field(n), b"value")));
    let (mut cell, mut journal) = (start.clone(), Journal::whole());
    let mut most = 0;
    for round in 0..100_000_u32 {
        let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 2)));
        m.set_field(&field(7), &round.to_be_bytes());
        m.set_expiry(Millis(round.into()));
        most = most.max(journal.bytes());
    }
    assert!(most <= 2 * (start.weight() + INVERSE_BYTES) + INVERSE_BYTES, "{most} of {}", start.weight());
    journal.roll_back(0, |_, undo| undo(&mut cell));
    assert_eq!(cell, start);
}

#[test]
fn an_expired_cell_is_absent() {
    let cell = Cell { value: Some(Value::String(vec![1])), expires_at: Millis(10).into() };
    assert!(cell.is_live(Millis(10)), "the millisecond of its time is its last");
    assert_eq!(cell.at(Millis(10)), &cell);
    assert_eq!(cell.at(Millis(11)), &Cell::ABSENT);
}

#[test]
fn what_a_string_was_written_by_is_kept() {
    let (mut cell, mut changed) = (Cell::ABSENT, false);
    let mut m = CellMut::new(&mut cell, &mut changed, None);
    m.put_string(b"12");
    m.set_expiry(Millis(70));
    let form = |m: &CellMut<'_>| (m.expires_at.form(), m.expires_at.time());
    assert_eq!(form(&m), (StringForm::Whole, Millis(70)));
    m.write_at(2, b"3");
    assert_eq!(form(&m), (StringForm::Buffer, Millis(70)));
    m.set_expiry(Millis(80));
    assert_eq!(form(&m), (StringForm::Buffer, Millis(80)));
    m.change_string(|bytes| bytes.push(b'4'));
    assert_eq!(form(&m), (StringForm::Whole, Millis(80)));
    m.set_form(StringForm::Text);
    m.put_keep_expiry(Value::String(b"5".to_vec()));
    assert_eq!(form(&m), (StringForm::Whole, Millis(80)));
    m.set_form(StringForm::Text);
    m.put_string(b"6");
    assert_eq!(form(&m), (StringForm::Whole, Millis(0)));
    m.set_form(StringForm::Text);
    m.delete();
    assert_eq!(*m, Cell::ABSENT);
    m.write_at(0, b"7");
    assert_eq!(form(&m), (StringForm::Buffer, Millis(0)));
}

#[test]
fn cells_survive_encoding() {
    let cell = |expires_at| Cell { value: Some(Value::String(b"v".to_vec())), expires_at };
    let time = Expiry::from(Millis(3));
    let forms = [StringForm::Whole, StringForm::Text, StringForm::Buffer];
    for cell in forms.map(|form| cell(time.with_form(form))).into_iter().chain([Cell::ABSENT, cell(time)]) {
        let mut bytes = Vec::new();
        cell.encode(&mut bytes);
        assert!(Cell::from_bytes(&bytes[..bytes.len() - 1]).is_none());
        assert_eq!(Cell::from_bytes(&bytes), Some(cell));
    }
}
