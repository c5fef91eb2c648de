//! `table`.

use crate::budget::Result;
use crate::machine::{Args, Host, Machine};
use crate::value::{TableRef, Value};

type Done = Result<()>;

pub(super) fn getn(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "getn")?;
    m.answer(Value::Number(m.heap.len(table) as f64))
}

pub(super) fn maxn(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "maxn")?;
    m.touch(0, m.heap.extent(table))?;
    let most = m.heap.pairs(table).filter_map(|(key, _)| key.number()).fold(0.0, f64::max);
    m.answer(Value::Number(most))
}

pub(super) fn insert(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "insert")?;
    let end = m.heap.len(table) as i64 + 1;
    let (at, value) = match args.len() {
        2 => (end, m.arg(args, 1)),
        3 => (m.int_arg(args, 1, "insert")?, m.arg(args, 2)),
        _ => return Err("wrong number of arguments to 'insert'".into()),
    };
    m.check_writable(table)?;
    if !(-i64::from(i32::MAX)..i64::from(i32::MAX)).contains(&at) {
        return Err(m.bad_argument(2, "insert", "position out of range"));
    }
    m.touch(0, end.saturating_sub(at).max(0) as usize)?;
    for i in (at..end).rev() {
        let moved = m.heap.raw_get(table, Value::Number(i as f64))?;
        m.heap.raw_set(table, Value::Number((i + 1) as f64), moved)?;
    }
    m.heap.raw_set(table, Value::Number(at as f64), value)
}

pub(super) fn remove(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "remove")?;
    let end = m.heap.len(table) as i64;
    let at = m.int_or(args, 1, "remove", end)?;
    m.check_writable(table)?;
    if !(1..=end).contains(&at) {
        return Ok(());
    }
    m.touch(0, (end - at) as usize)?;
    let removed = m.heap.raw_at(table, at as usize);
    for i in at..end {
        let moved = m.heap.raw_at(table, i as usize + 1);
        m.heap.raw_set(table, Value::Number(i as f64), moved)?;
    }
    m.heap.raw_set(table, Value::Number(end as f64), Value::Nil)?;
    m.answer(removed)
}

pub(super) fn concat(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "concat")?;
    let between = match m.arg(args, 1) {
        Value::Nil => None,
        _ => Some(m.text_arg(args, 1, "concat")?),
    };
    let from = m.int_or(args, 2, "concat", 1)?;
    let to = m.int_or(args, 3, "concat", m.heap.len(table) as i64)?;
    let mut out = Vec::new();
    let mut i = from;
    while i <= to {
        let value = m.heap.raw_get(table, Value::Number(i as f64))?;
        let before = out.len();
        match value {
            Value::String(text) => {
                m.heap.budget.fits(2 * (out.len() + m.heap.str_len(text)))?;
                out.extend_from_slice(m.heap.bytes(text));
            }
            Value::Number(x) => {
                let mut digits = String::new();
                crate::number::write_number(x, &mut digits);
                out.extend_from_slice(digits.as_bytes());
            }
            other => {
                let kind = other.type_name();
                return Err(format!("invalid value ({kind}) at index {i} in table for 'concat'").into());
            }
        }
        if i < to
            && let Some(between) = between
        {
            m.heap.budget.fits(2 * (out.len() + m.heap.str_len(between)))?;
            out.extend_from_slice(m.heap.bytes(between));
        }
        m.touch(out.len() - before, 1)?;
        i += 1;
    }
    m.give_text(&out)
}

pub(super) fn foreach(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "foreach")?;
    let function = m.arg(args, 1);
    let mut key = Value::Nil;
    while let Some((pair, passed)) = m.heap.tables[table.0 as usize].next(key, &m.heap.budget) {
        m.touch(0, passed + 1)?;
        let Some((k, v)) = pair else { break };
        let answer = m.call_one(host, function, &[k, v])?;
        if !answer.is_nil() {
            m.clear_results();
            return m.answer(answer);
        }
        key = k;
    }
    m.clear_results();
    Ok(())
}

pub(super) fn foreachi(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "foreachi")?;
    let function = m.arg(args, 1);
    for i in 1..=m.heap.len(table) {
        m.touch(0, 1)?;
        let value = m.heap.raw_at(table, i);
        let answer = m.call_one(host, function, &[Value::Number(i as f64), value])?;
        if !answer.is_nil() {
            m.clear_results();
            return m.answer(answer);
        }
    }
    m.clear_results();
    Ok(())
}

pub(super) fn sort(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "sort")?;
    let order = match m.arg(args, 1) {
        Value::Nil => None,
        function @ (Value::Closure(_) | Value::Native(_)) => Some(function),
        _ => return Err(m.bad_argument(2, "sort", "function expected")),
    };
    m.check_writable(table)?;
    let len = m.heap.len(table);
    m.touch(0, len)?;
    m.heap.budget.fits(2 * len * size_of::<Value>())?;
    let mut values: Vec<Value> = (1..=len).map(|i| m.heap.raw_at(table, i)).collect();
    let mut other = values.clone();
    // Runs of doubling length are merged. The number of comparisons is bounded whatever the order function answers.
    let mut width = 1;
    while width < len {
        for start in (0..len).step_by(2 * width) {
            let (middle, end) = ((start + width).min(len), (start + 2 * width).min(len));
            let (mut left, mut right) = (start, middle);
            for place in other.iter_mut().take(end).skip(start) {
                let takes_right = left >= middle
                    || right < end && {
                        m.touch(0, 1)?;
                        is_before(m, host, order, values[right], values[left])?
                    };
                let from = if takes_right { &mut right } else { &mut left };
                *place = values[*from];
                *from += 1;
            }
        }
        std::mem::swap(&mut values, &mut other);
        width *= 2;
    }
    m.clear_results();
    put_back(m, table, &values)
}

fn put_back(m: &mut Machine, table: TableRef, values: &[Value]) -> Done {
    for (i, value) in values.iter().enumerate() {
        m.heap.raw_set(table, Value::Number((i + 1) as f64), *value)?;
    }
    Ok(())
}

fn is_before(m: &mut Machine, host: &mut dyn Host, order: Option<Value>, a: Value, b: Value) -> Result<bool> {
    match order {
        Some(function) => Ok(m.call_one(host, function, &[a, b])?.is_true()),
        None => m.less(host, a, b),
    }
}
