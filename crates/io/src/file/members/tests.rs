use super::*;

fn member(start: u64, flat: u64, len: u64) -> Member {
    Member {
        path: b"/x".to_vec(),
        inode: None,
        start,
        flat,
        len,
        kind: None,
    }
}

#[test]
fn members_of_multi_lie_one_behind_the_other() {
    let driver = Driver::Multi {
        map: [1, 1, 3, 3, 1, 1],
        stem: b"/x".to_vec(),
    };
    let far = u64::MAX / 2;
    let members = vec![member(0, 0, 100), member(far, 4096, 50)];
    let layout = Layout { driver, members };
    assert_eq!(layout.flat(20, 80), Some(20));
    assert_eq!(layout.flat(far + 10, 40), Some(4106));
    for (addr, len) in [(20, 81), (100, 1), (far - 1, 1), (far, 51), (u64::MAX, 2)] {
        assert_eq!(layout.flat(addr, len), None, "{addr} {len}");
    }
    assert_eq!(layout.end(), 4146);
}

#[test]
fn zeros_in_names() {
    assert_eq!(zeros(b"run0-00000.h5"), [(3, 1), (5, 5)]);
    assert_eq!(zeros(b"x-00010.h5"), []);
    assert_eq!(zeros(b"no.h5"), []);
}
