//! The findings of an [audit](super::audit) when a run is over: one for each condition, and whether the tables have grown
//! by what was answered.

use std::collections::BTreeMap;

use super::audit::{CUSTOMER, DAMAGED, NEWEST, PLACED, Paid, Rows, STOCK, Wrong};
use super::population::LOADED_PAYMENT_CENTS;
use super::source::Summary;
use super::{Kind, Parameters};
use crate::aggregate::Aggregate;
use crate::{Counts, Finding, Results};

/// The finding of one condition.
fn finding(name: &'static str, wrong: Option<&Wrong>) -> Finding {
    let text = |wrong: &Wrong| format!("{} times, such as {}", wrong.times, wrong.examples.join("; "));
    Finding::of(name, wrong.map(text))
}

/// The conditions that each shard checks, and what else it does.
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

/// Checks what must hold after a run.
pub(super) fn check(parameters: &Parameters, results: &Results) -> Vec<Finding> {
    let of_rows = |rows: &Rows| {
        let mut findings: Vec<Finding> = Vec::new();
        findings.extend(WITHIN.map(|(condition, name)| finding(name, rows.wrong.get(&condition))));
        let across = across_warehouses(rows);
        findings.extend(across.iter().map(|(name, wrong)| finding(name, wrong.as_ref())));
        findings.extend(growth(parameters, results, rows));
        findings
    };
    if parameters.at_home {
        return match crate::audit::of_parts::<Rows>(results) {
            Some(rows) => of_rows(&rows),
            None => vec![Finding::of("audit", Some("an audit was not answered".to_owned()))],
        };
    }
    crate::audit::check(results, |rows: Rows, digest| {
        let mut findings = vec![digest];
        findings.extend(of_rows(&rows));
        findings
    })
}

/// Conditions 1, 8 and 9, and the stocks against the order lines.
fn across_warehouses(rows: &Rows) -> [(&'static str, Option<Wrong>); 4] {
    let mut sums: BTreeMap<u32, Paid> = BTreeMap::new();
    for (&(warehouse, _), paid) in rows.paid.iter().filter(|((_, district), _)| *district > 0) {
        sums.entry(warehouse).or_default().merge(*paid);
    }
    let mut found = Rows::default();
    for (&(w, d), &Paid { ytd_cents, history_cents }) in &rows.paid {
        if d > 0 {
            found.require(9, ytd_cents == history_cents, || {
                format!("district {d} of warehouse {w} has D_YTD {ytd_cents} where {history_cents} were paid")
            });
            continue;
        }
        let sum = sums.get(&w).copied().unwrap_or_default();
        found.require(1, ytd_cents == sum.ytd_cents, || {
            format!("warehouse {w} has W_YTD {ytd_cents} where its districts have {}", sum.ytd_cents)
        });
        found.require(8, ytd_cents == sum.history_cents, || {
            format!("warehouse {w} has W_YTD {ytd_cents} where {} were paid", sum.history_cents)
        });
    }
    for (w, [stocks, lines]) in &rows.ordered {
        found.require(STOCK, stocks == lines, || {
            format!("the stocks of warehouse {w} count {stocks:?}, the order lines {lines:?}")
        });
    }
    [("condition_1", 1), ("condition_8", 8), ("condition_9", 9), ("stocks", STOCK)]
        .map(|(name, condition)| (name, found.wrong.remove(&condition)))
}

/// Checks that the tables have grown by what was answered, and by nothing else.
fn growth(parameters: &Parameters, results: &Results, rows: &Rows) -> Vec<Finding> {
    let Parameters { warehouses, scale, .. } = parameters;
    let warehouses = u64::from(*warehouses);
    let districts = warehouses * u64::from(scale.districts);
    let per_district = |n: u32| districts * u64::from(n);
    let of = |kind: Kind| {
        let [one, several] = kind.numbers();
        let mut counts = results.of_kind(one);
        if several != one {
            counts += results.of_kind(several);
        }
        counts
    };
    let (answers, odd): (Summary, u64) = results.merged();
    let totals = &rows.totals;
    let Counts { committed: orders, aborted, restarted_out, turned_away, .. } = of(Kind::NewOrder);
    let answered = orders + aborted + restarted_out + turned_away;
    let unanswered = answers.new_orders.saturating_sub(answered);
    let spared = answers.unused_items.saturating_sub(aborted);
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
    let payments = of(Kind::Payment);
    let restarts = payments.restarts + of(Kind::OrderStatus).restarts;
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
        grown(
            totals.history,
            per_district(scale.customers),
            "history",
            payments.committed,
            "Payments committed",
        ),
        grown(totals.new_lines, 0, "order_lines", answers.lines, "lines were answered"),
        Finding::new("payments", paid_cents == loaded_cents + answers.paid_cents as i64, || {
            format!("{paid_cents} cents where {loaded_cents} were loaded and {} paid", answers.paid_cents)
        }),
        Finding::new(
            "deliveries",
            delivered == loaded_delivered + answers.delivered && totals.deliveries == answers.delivered,
            || {
                let (answered, counted) = (answers.delivered, totals.deliveries);
                format!(
                    "{delivered} delivered orders where {loaded_delivered} were loaded, {answered} delivered, \
                     and customers count {counted}"
                )
            },
        ),
        // The index by last name never changes (calvin.md, section 4.7, rule 5).
        Finding::new("no_restarts_by_name", restarts == 0, || {
            format!("{restarts} Payments and OrderStatuses restarted")
        }),
        // Of the orders of an item that there is not, those that were answered have aborted, and no others.
        Finding::new(
            "rollbacks",
            aborted <= answers.unused_items && spared <= unanswered + restarted_out + turned_away,
            || {
                let unused = answers.unused_items;
                format!(
                    "{aborted} NewOrders aborted where {unused} had to, and {unanswered} were not answered"
                )
            },
        ),
        Finding::new("answers", answers.odd == 0 && odd == 0, || {
            format!("{} answers and {odd} summaries that are none", answers.odd)
        }),
    ]
}
