//! Messages, timers and computations of roles on one loop and on several.

use crate::*;

/// Its loop goes on while the work is done: the work waits for what a timer of the same role sends.
#[test]
fn work_that_is_given_away_is_done_beside_its_loop_and_answered_once() {
    let (open, gate) = channel::<()>();
    let (done, finished) = channel();
    let mut gate = Some(gate);
    let role = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Start => {
            let gate = gate.take().unwrap();
            out.work(Work::new(7, move || gate.recv().is_ok()));
            out.work(Work::new(8, || false));
            out.set_timer(TimerId(1), Micros(100));
        }
        Event::Timer(_) => open.send(()).unwrap(),
        Event::Work(WorkDone { token, product }) => done.send((token, product.downcast().ok())).unwrap(),
        Event::Stop => {}
        _ => unreachable!(),
    });
    let running = Runtime::start(options(), None, vec![LoopSpec::new("a").role(1, role)]).unwrap();
    let both = [finished.recv().unwrap(), finished.recv().unwrap()];
    assert_eq!(both, [(7, Some(Box::new(true))), (8, Some(Box::new(false)))]);
    running.stop().unwrap();
    assert!(finished.try_recv().is_err());
}

#[test]
fn two_loops_deliver_everything_in_order() {
    let (done, finished) = channel();
    let loops = vec![
        LoopSpec::new("a").role(1, pinger(vec![2, 3], 50_000, 300, done)),
        LoopSpec::new("b").role(2, echo()).role(3, echo()),
    ];
    let running = Runtime::start(options(), None, loops).unwrap();
    assert_eq!(finished.recv(), Ok(50_000));
    let handle = running.handle();
    running.stop().unwrap();
    let mut seen = Vec::new();
    handle.inspect(|snapshot| {
        seen.extend(snapshot.roles.iter().map(|role| (snapshot.name.clone(), role.role, role.events)));
        assert!(snapshot.roles.iter().all(|role| role.gauges == [("acts_closures", 1.0)]));
        assert!(snapshot.turns > 0 && snapshot.cpu > Duration::ZERO && snapshot.sent == 100_000);
    });
    // And the start and the stop.
    let of = |name: &str, role, events| (name.to_owned(), role, events);
    assert_eq!(seen, [of("a", 1, 100_002), of("b", 2, 50_002), of("b", 3, 50_002)]);
}

#[test]
fn every_pair_of_many_roles_keeps_its_order() {
    let (done, finished) = channel();
    let roles: Vec<u16> = (0..6).collect();
    let loops = roles.chunks(2).map(|pair| {
        pair.iter().fold(LoopSpec::new(format!("loop-{pair:?}")), |spec, me| {
            let peers = roles.iter().copied().filter(|peer| peer != me).collect();
            spec.role(*me, pinger(peers, 2_000, 20, done.clone()))
        })
    });
    let running = Runtime::start(options(), None, loops.collect()).unwrap();
    for _ in &roles {
        assert_eq!(finished.recv(), Ok(2_000));
    }
    running.stop().unwrap();
}

#[test]
fn a_spinning_loop_delivers_as_well() {
    let (done, finished) = channel();
    let loops =
        vec![LoopSpec::new("a").role(1, pinger(vec![2], 2_000, 1, done)), LoopSpec::new("b").role(2, echo())];
    let options = Options { spin: Duration::from_micros(50), ..options() };
    let running = Runtime::start(options, None, loops).unwrap();
    assert_eq!(finished.recv(), Ok(2_000));
    running.stop().unwrap();
}

#[test]
fn timers_fire_in_order_and_not_before_their_time() {
    let (fired, seen) = channel();
    let role = Acts(move |now: Now, event, out: &mut Outbox<Msg>| match event {
        Event::Start => {
            for (id, us) in [(1, 900), (2, 300), (3, 1), (4, 2_500), (5, 40), (6, 25_000)] {
                out.set_timer(TimerId(id), Micros(us));
            }
            // Set again, and never.
            out.set_timer(TimerId(1), Micros(600));
            out.cancel_timer(TimerId(5));
            fired.send((0, now.elapsed)).unwrap();
        }
        Event::Timer(id) => fired.send((id.0, now.elapsed)).unwrap(),
        Event::Stop => {}
        _ => unreachable!(),
    });
    let running = Runtime::start(options(), None, vec![LoopSpec::new("a").role(1, role)]).unwrap();
    let (_, start) = seen.recv().unwrap();
    for (id, us) in [(3, 1), (2, 300), (1, 600), (4, 2_500), (6, 25_000)] {
        let (fired, time) = seen.recv().unwrap();
        assert_eq!(fired, id);
        assert!(time >= start.plus(Micros(us)), "timer {id}");
    }
    running.stop().unwrap();
    assert!(seen.recv().is_err(), "the cancelled timer fired");
}
