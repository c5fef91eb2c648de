//! The shapes that most commands have, so that a command is no more than its arguments' check and its effect
//! on one record.
//!
//! [`ReadKey`] and [`WriteKey`] are commands on the key that is their first argument; [`EachKey`] are commands
//! on many keys, one fragment each, whose replies are put together. A command error such as WRONGTYPE is an
//! answer, not an abort: the transaction around it goes on, as Redis has it.

use ordain_model::args::Arg;
use ordain_model::value::EVICTED;
use ordain_model::{
    Abort, Access, ArgIter, Args, Cell, CellMut, Datum, FragmentContext, HashValue, Millis, PlanError,
    Planner, Procedure, ReplyContext, Target, Value, Writer,
};

use crate::extended::Extended;

/// An error with a fixed text: either before the command is sequenced or as its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) &'static str);

impl From<Refusal> for PlanError {
    fn from(refusal: Refusal) -> PlanError {
        PlanError::fixed(refusal.0)
    }
}

pub(crate) const WRONG_TYPE: Refusal =
    Refusal("WRONGTYPE Operation against a key holding the wrong kind of value");
pub(crate) const SYNTAX: Refusal = Refusal("ERR syntax error");
pub(crate) const NOT_INTEGER: Refusal = Refusal("ERR value is not an integer or out of range");
pub(crate) const NOT_FLOAT: Refusal = Refusal("ERR value is not a valid float");
pub(crate) const NOT_FINITE: Refusal = Refusal("ERR increment would produce NaN or Infinity");
pub(crate) const OVERFLOW: Refusal = Refusal("ERR increment or decrement would overflow");
pub(crate) const NO_SUCH_KEY: Refusal = Refusal("ERR no such key");
pub(crate) const LONG_REPLY: Refusal = Refusal(ordain_model::datum::TOO_LONG);
pub(crate) const TOO_LONG: Refusal = Refusal("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub(crate) const BAD_DB: Refusal = Refusal("ERR DB index is out of range");
/// For callers that skip the check of the command table.
pub(crate) const TOO_FEW: Refusal = Refusal("ERR wrong number of arguments");

/// The input of a command's code besides the record.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    /// The arguments after the key.
    pub(crate) rest: ArgIter<'a>,
    pub(crate) now: Millis,
    pub(crate) seed: u64,
    /// The longest reply, bytes.
    pub(crate) most: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn of(cx: &FragmentContext<'a>) -> Input<'a> {
        let after_key = cx.key.at + 4 + cx.key.bytes.len() as u32;
        let (rest, most) = (cx.args.from_offset(after_key), cx.most);
        Input { rest, now: cx.now, seed: cx.seed, most }
    }
}

/// The check of a command that takes whatever the table's arity lets through.
pub(crate) fn any(_rest: ArgIter<'_>) -> Result<(), PlanError> {
    Ok(())
}

/// The next argument, as an integer.
pub(crate) fn integer(rest: &mut ArgIter<'_>) -> Result<i64, Refusal> {
    crate::number::parse_i64(rest.bytes()).ok_or(NOT_INTEGER)
}

/// The string that a record holds, `None` if it is absent.
pub(crate) fn string(cell: &Cell) -> Result<Option<&[u8]>, Refusal> {
    match &cell.value {
        Some(Value::String(bytes)) => Ok(Some(bytes)),
        Some(Value::Evicted(_)) => panic!("{EVICTED}"),
        None => Ok(None),
        Some(_) => Err(WRONG_TYPE),
    }
}

/// The hash that a record holds, `None` if it is absent.
pub(crate) fn hash(cell: &Cell) -> Result<Option<&HashValue>, Refusal> {
    match &cell.value {
        Some(Value::Hash(hash)) => Ok(Some(hash)),
        Some(Value::Evicted(_)) => panic!("{EVICTED}"),
        None => Ok(None),
        Some(_) => Err(WRONG_TYPE),
    }
}

/// An integer after an increment; it is 0 if there is none, and `invalid` is the answer to any other text.
pub(crate) fn increment(old: Option<&[u8]>, by: i64, invalid: Refusal) -> Result<i64, Refusal> {
    let old = old.map_or(Ok(0), |text| crate::number::parse_i64(text).ok_or(invalid))?;
    old.checked_add(by).ok_or(OVERFLOW)
}

/// The text of a float after an increment, 0 if there is none; `invalid` is the answer to any other text.
pub(crate) fn increment_float(
    old: Option<&[u8]>,
    by: Extended,
    invalid: Refusal,
) -> Result<Vec<u8>, Refusal> {
    let new = Extended::parse(old.unwrap_or(b"0")).ok_or(invalid)?.plus(by);
    if new.is_finite() { Ok(new.text()) } else { Err(NOT_FINITE) }
}

/// A value or nothing.
pub(crate) fn bulk_or_nil(w: &mut Writer<'_>, value: Option<&[u8]>) {
    match value {
        Some(bytes) => w.bulk(bytes),
        None => w.nil(),
    }
}

/// Writes one thing after the other, and refuses to go on once the reply would be too long: by what the record and the
/// arguments are, so every replica refuses the command alike.
pub(crate) fn write_each<T>(
    w: &mut Writer<'_>,
    most: usize,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut Writer<'_>, T),
) -> Result<(), Refusal> {
    let start = w.0.len();
    for item in items {
        write(w, item);
        if w.0.len() - start > most {
            return Err(LONG_REPLY);
        }
    }
    Ok(())
}

/// Items of an array whose length is not known before they are written.
#[derive(Default)]
pub(crate) struct Items {
    count: usize,
    encoded: Vec<u8>,
}

impl Items {
    /// Writes one more.
    pub(crate) fn push(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        self.count += 1;
        write(&mut Writer(&mut self.encoded));
    }

    /// The bytes that the items take.
    pub(crate) fn bytes(&self) -> usize {
        self.encoded.len()
    }

    /// Writes the array.
    pub(crate) fn finish(&self, w: &mut Writer<'_>) {
        w.array(self.count);
        w.raw(&self.encoded);
    }
}

/// A command that reads the record of its first argument.
pub(crate) struct ReadKey<C, R> {
    /// Refuses bad arguments; is given those after the key.
    pub(crate) check: C,
    /// Answers.
    pub(crate) run: R,
}

impl<C, R> Procedure for ReadKey<C, R>
where
    C: Fn(ArgIter<'_>) -> Result<(), PlanError> + Send + Sync,
    R: Fn(Input<'_>, &Cell, &mut Writer<'_>) -> Result<(), Refusal> + Send + Sync,
{
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut rest = args.iter();
        let key = rest.next().ok_or(TOO_FEW)?;
        (self.check)(rest)?;
        planner.key(0, Access::Read, key).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let input = Input::of(cx);
        let cell = match &cx.target {
            Target::Read(cell) => cell,
            Target::Write(cell) => &**cell,
            _ => &Cell::ABSENT,
        };
        cx.locals.counts.read(cell.value.is_some());
        answer(cx.out, |w| (self.run)(input, cell, w));
        Ok(())
    }
}

/// A command on records whose values it [spares](ordain_model::Fragment::spares_value).
pub(crate) struct Sparing<P>(pub(crate) P);

impl<P: Procedure> Procedure for Sparing<P> {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let since = planner.count();
        self.0.plan(args, planner)?;
        planner.spare_values(since);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        self.0.run(code, cx)
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        self.0.reply(cx, out);
    }
}

/// A command that may change the record of its first argument.
pub(crate) struct WriteKey<C, R> {
    /// Refuses bad arguments; is given those after the key.
    pub(crate) check: C,
    /// Changes the record and answers.
    pub(crate) run: R,
}

impl<C, R> Procedure for WriteKey<C, R>
where
    C: Fn(ArgIter<'_>) -> Result<(), PlanError> + Send + Sync,
    R: Fn(Input<'_>, CellMut<'_>, &mut Writer<'_>) -> Result<(), Refusal> + Send + Sync,
{
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut rest = args.iter();
        let key = rest.next().ok_or(TOO_FEW)?;
        (self.check)(rest)?;
        planner.key(0, Access::Write, key).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        write_record(cx, &self.run);
        Ok(())
    }
}

/// A command that replaces the record of its first argument, whatever it holds, as far as its arguments have it so.
pub(crate) struct PutKey<C, R> {
    /// Refuses bad arguments, and tells whether with these the write is [blind](ordain_model::Fragment::is_blind); is given those
    /// after the key.
    pub(crate) check: C,
    /// Changes the record and answers.
    pub(crate) run: R,
}

impl<C, R> Procedure for PutKey<C, R>
where
    C: Fn(ArgIter<'_>) -> Result<bool, PlanError> + Send + Sync,
    R: Fn(Input<'_>, CellMut<'_>, &mut Writer<'_>) -> Result<(), Refusal> + Send + Sync,
{
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut rest = args.iter();
        let key = rest.next().ok_or(TOO_FEW)?;
        let is_blind = (self.check)(rest)?;
        planner.key(0, Access::Write, key)?;
        planner.blind_if(is_blind);
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        write_record(cx, &self.run);
        Ok(())
    }
}

/// Runs the effect of a fragment planned with [`Access::Write`].
pub(crate) fn write_record(
    cx: &mut FragmentContext<'_>,
    run: impl Fn(Input<'_>, CellMut<'_>, &mut Writer<'_>) -> Result<(), Refusal>,
) {
    let input = Input::of(cx);
    if let Target::Write(cell) = &mut cx.target {
        answer(cx.out, |w| run(input, cell.reborrow(), w));
    }
}

/// Writes an answer, or the error if there is one.
#[inline]
pub(crate) fn answer(out: &mut Vec<u8>, write: impl FnOnce(&mut Writer<'_>) -> Result<(), Refusal>) {
    let start = out.len();
    if let Err(refusal) = write(&mut Writer(out)) {
        out.truncate(start);
        if refusal == LONG_REPLY {
            out.shrink_to(start);
        }
        Writer(out).error(refusal.0);
    }
}

/// The way in which the slots of many keys become one reply.
#[derive(Clone, Copy)]
pub(crate) enum Together {
    /// The sum of integers.
    Sum,
    /// An array of them.
    Array,
    /// OK, whatever they are.
    Ok,
}

impl Together {
    fn reply(self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        match self {
            Together::Ok => w.ok(),
            Together::Sum => w.int((0..cx.count).filter_map(|i| Datum::first(cx.slot(i)).as_int()).sum()),
            Together::Array => {
                w.array(cx.count as usize);
                (0..cx.count).for_each(|i| w.raw(cx.slot(i)));
            }
        }
    }
}

/// A command that reads the record of each of its arguments.
pub(crate) struct ReadEach<R> {
    /// Answers for one key.
    pub(crate) run: R,
    /// The way in which the answers become one.
    pub(crate) together: Together,
}

impl<R> Procedure for ReadEach<R>
where
    R: Fn(&Cell, &mut Writer<'_>) + Send + Sync,
{
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        each_key(args.iter(), 1, |key| planner.key(0, Access::Read, key).map(drop))
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if let Target::Read(cell) = &cx.target {
            cx.locals.counts.read(cell.value.is_some());
            (self.run)(cell, &mut Writer(cx.out));
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        self.together.reply(cx, out);
    }
}

/// A command that may change the record of each of its keys.
pub(crate) struct WriteEach<R> {
    /// From one key to the next: 1, or 2 where each key has a value after it.
    pub(crate) step: usize,
    /// Refuses bad arguments.
    pub(crate) check: fn(Args<'_>) -> Result<(), PlanError>,
    /// True if each record is replaced, whatever it holds.
    pub(crate) is_blind: bool,
    /// Changes the record of one key and answers for it.
    pub(crate) run: R,
    /// The way in which the answers become one.
    pub(crate) together: Together,
}

impl<R> Procedure for WriteEach<R>
where
    R: Fn(Input<'_>, CellMut<'_>, &mut Writer<'_>) -> Result<(), Refusal> + Send + Sync,
{
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        (self.check)(args)?;
        each_key(args.iter(), self.step, |key| {
            planner.key(0, Access::Write, key)?;
            planner.blind_if(self.is_blind);
            Ok(())
        })
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        write_record(cx, &self.run);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        self.together.reply(cx, out);
    }
}

/// Plans something for each of the keys, of which there must be one at least.
pub(crate) fn each_key(
    items: ArgIter<'_>,
    step: usize,
    mut plan: impl FnMut(Arg<'_>) -> Result<(), PlanError>,
) -> Result<(), PlanError> {
    let mut none = true;
    for key in items.step_by(step) {
        none = false;
        plan(key)?;
    }
    if none { Err(TOO_FEW.into()) } else { Ok(()) }
}
