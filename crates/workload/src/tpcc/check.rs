//! What is made of an [audit](super::audit) when a run is over: a finding for each condition, and whether the tables
//! have grown by what was answered.

use std::collections::BTreeMap;

use super::audit::{CUSTOMER, DAMAGED, NEWEST, PLACED, Paid, Rows, STOCK, Wrong};
use super::population::LOADED_PAYMENT_CENTS;
use super::source::Testimony;
use super::{Kind, Parameters};
use crate::audit::Audited;
use crate::{Counts, Finding, Seen};

/// What is wrong with one condition, as a report tells it.
fn finding(name: &'static str, wrong: Option<&Wrong>) -> Finding {
    Finding {
        name,
        wrong: wrong.map(|wrong| format!("{} times, such as {}", wrong.times, wrong.examples.join("; "))),
    }
}

/// The conditions that each shard judges, with what else it looks at.
const WITHIN: [(u8, &str); 14] = [
    (DAMAGED, "whole_rows"),
    (2, "condition_2"),
    (3, "condition_3"),
    (4, "condition_4"),
    (5, "condition_5"),
    (6, "condition_6"),
    (7, "condition_7"),
    (10, "condition_10"),
    (11, "condition_11"),
    (12, "condition_12"),
    (STOCK, "stock_quantities"),
    (NEWEST, "newest_orders"),
    (PLACED, "orders_as_placed"),
    (CUSTOMER, "customer_counts"),
];

/// What must hold after a run.
pub(super) fn check(parameters: &Parameters, seen: &Seen) -> Vec<Finding> {
    let (Audited { found: mut rows, .. }, digest) = match crate::audit::read::<Rows>(seen) {
        Ok(read) => read,
        Err(unanswered) => return vec![unanswered],
    };
    let mut findings = vec![digest];
    let payments = across_warehouses(&mut rows);
    findings.extend(WITHIN.map(|(condition, name)| finding(name, rows.wrong.get(&condition))));
    findings.extend(payments.iter().map(|(name, wrong)| finding(name, wrong.as_ref())));
    findings.extend(growth(parameters, seen, &rows));
    findings
}

/// Conditions 1, 8 and 9, and the stocks against the order lines.
fn across_warehouses(rows: &mut Rows) -> [(&'static str, Option<Wrong>); 4] {
    let mut sums: BTreeMap<u32, Paid> = BTreeMap::new();
    for (&(warehouse, district), paid) in &rows.paid {
        if district > 0 {
            let sum = sums.entry(warehouse).or_default();
            sum.ytd_cents = sum.ytd_cents.wrapping_add(paid.ytd_cents);
            sum.history_cents = sum.history_cents.wrapping_add(paid.history_cents);
        }
    }
    let mut judged = Rows::default();
    for (&(w, d), &Paid { ytd_cents, history_cents }) in &rows.paid {
        if d > 0 {
            judged.require(9, ytd_cents == history_cents, || {
                format!("district {d} of warehouse {w} has D_YTD {ytd_cents} where {history_cents} were paid")
            });
            continue;
        }
        let sum = sums.get(&w).copied().unwrap_or_default();
        judged.require(1, ytd_cents == sum.ytd_cents, || {
            format!("warehouse {w} has W_YTD {ytd_cents} where its districts have {}", sum.ytd_cents)
        });
        judged.require(8, ytd_cents == sum.history_cents, || {
            format!("warehouse {w} has W_YTD {ytd_cents} where {} were paid", sum.history_cents)
        });
    }
    for (w, [stocks, lines]) in &rows.ordered {
        judged.require(STOCK, stocks == lines, || {
            format!("the stocks of warehouse {w} say {stocks:?}, the order lines {lines:?}")
        });
    }
    [("condition_1", 1), ("condition_8", 8), ("condition_9", 9), ("stocks", STOCK)]
        .map(|(name, condition)| (name, judged.wrong.remove(&condition)))
}

/// Whether the tables have grown by what was answered, and by nothing else.
fn growth(parameters: &Parameters, seen: &Seen, rows: &Rows) -> Vec<Finding> {
    let Parameters { warehouses, scale, .. } = parameters;
    let warehouses = u64::from(*warehouses);
    let districts = warehouses * u64::from(scale.districts);
    let per_district = |n: u32| districts * u64::from(n);
    let committed = |kind: Kind| seen.by_kind.get(kind as usize).map_or(0, |counts| counts.committed);
    let mut told = Testimony::default();
    let mut odd = 0;
    for testimony in &seen.testimonies {
        match Testimony::decode(testimony) {
            Some(testimony) => told += testimony,
            None => odd += 1,
        }
    }
    let totals = &rows.totals;
    let placed = seen.by_kind.get(Kind::NewOrder as usize).copied().unwrap_or_default();
    let Counts { aborted, restarted_out, turned_away, .. } = placed;
    let answered = placed.committed + aborted + restarted_out + turned_away;
    let unanswered = told.new_orders.saturating_sub(answered);
    let spared = told.unused_items.saturating_sub(aborted);
    let loaded_cents = per_district(scale.customers) as i64 * LOADED_PAYMENT_CENTS;
    let paid_cents: i64 = rows.paid.values().map(|paid| paid.history_cents).sum();
    let fixed = [
        ("WAREHOUSE", totals.warehouses, warehouses),
        ("DISTRICT", totals.districts, districts),
        ("CUSTOMER", totals.customers, per_district(scale.customers)),
        ("customers by name", totals.names, per_district(scale.last_names())),
        ("ITEM", totals.items, warehouses * u64::from(scale.items)),
        ("STOCK", totals.stocks, warehouses * u64::from(scale.items)),
    ];
    let off: Vec<String> = fixed
        .iter()
        .filter(|(_, there, loaded)| there != loaded)
        .map(|(name, there, loaded)| format!("{there} rows of {name} where {loaded} were loaded"))
        .collect();
    let restarts_of = |kind: Kind| seen.by_kind.get(kind as usize).map_or(0, |counts| counts.restarts);
    let restarts = restarts_of(Kind::Payment) + restarts_of(Kind::OrderStatus);
    let (orders, payments) = (committed(Kind::NewOrder), committed(Kind::Payment));
    let grown = |rows: u64, loaded: u64, name: &'static str, by: u64, what: &str| {
        Finding::new(name, rows == loaded + by, || {
            format!("{rows} rows where {loaded} were loaded and {by} {what}")
        })
    };
    let delivered = totals.orders.wrapping_sub(totals.new_orders);
    let loaded_delivered = per_district(scale.orders - scale.undelivered);
    vec![
        Finding::new("loaded_rows", off.is_empty(), || off.join("; ")),
        grown(totals.orders, per_district(scale.orders), "orders", orders, "NewOrders committed"),
        grown(totals.history, per_district(scale.customers), "history", payments, "Payments committed"),
        grown(totals.new_lines, 0, "order_lines", told.lines, "lines were answered"),
        Finding::new("payments", paid_cents == loaded_cents + told.paid_cents as i64, || {
            format!("{paid_cents} cents where {loaded_cents} were loaded and {} paid", told.paid_cents)
        }),
        Finding::new(
            "deliveries",
            delivered == loaded_delivered + told.delivered && totals.deliveries == told.delivered,
            || {
                let (answered, counted) = (told.delivered, totals.deliveries);
                format!(
                    "{delivered} delivered orders where {loaded_delivered} were loaded, {answered} delivered, \
                     and customers count {counted}"
                )
            },
        ),
        // The index by last name never changes (calvin.md, section 4.7, rule 5).
        Finding::new("no_restarts_by_name", restarts == 0, || {
            format!("{restarts} Payments and OrderStatuses were started over")
        }),
        // Of the orders of an item that there is not, those that were answered have aborted, and no others.
        Finding::new(
            "rollbacks",
            aborted <= told.unused_items && spared <= unanswered + restarted_out + turned_away,
            || {
                let unused = told.unused_items;
                format!(
                    "{aborted} NewOrders aborted where {unused} had to, and {unanswered} were not answered"
                )
            },
        ),
        Finding::new("answers", told.odd == 0 && odd == 0, || {
            format!("{} answers and {odd} testimonies that are none", told.odd)
        }),
    ]
}
