"""Find whole devices for many jobs in one call.

`plane_devices` and `plane_nodes` are the blocks of the assignment that changes, `held_devices` is the block of the
observed one; `devices`, `nodes` and `pools` are those of `core.allocatable`. A worker takes whole devices of one pool;
pools of one node are adjacent.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Ints
from levada.kernels.registry import kernel
from levada.kernels.release import devices_by_job, release, slot_mask

_FREE = c.FREE
_BIG = 1 << 60
#: More new jobs than this are placed together: one by one, each scans all devices of its type.
_FEW = 4
#: Worker shapes whose room per pool is cached; bounds memory and does not affect results.
_SHAPES = 64


@kernel
def _room(free: int, cpu_left: int, memory_left: int, whole: int, cpu: int, memory: int) -> int:
    """How many more workers a pool can take."""
    room = free // whole
    if cpu > 0:
        room = min(room, max(cpu_left // cpu, 0))
    if memory > 0:
        room = min(room, max(memory_left // memory, 0))
    return room


@kernel
def _best_single(room: Ints, now_room: Ints, need: int) -> int:
    """The pool that holds *need* with the least room, preferably free at once; -1 if none."""
    best, best_late, best_room = -1, True, _BIG
    for i in range(len(room)):
        if room[i] < need:
            continue
        late = now_room[i] < need
        if (best_late and not late) or (late == best_late and room[i] < best_room):
            best, best_late, best_room = i, late, room[i]
            if best_room == need and not late:
                break
    return best


@kernel
def _tightest(domain: Ints, room: Ints, ranked: Ints, need: int) -> int:
    """The domain that holds *need* on the fewest pools, then with the least room; -1 if none."""
    count = 0
    for i in range(len(domain)):
        count = max(count, domain[i] + 1)
    total = np.zeros(count, np.int64)
    pools = np.zeros(count, np.int64)
    for i in ranked:
        group = domain[i]
        if total[group] < need and room[i] > 0:
            pools[group] += 1
        total[group] += room[i]
    best = -1
    for group in range(count):
        if total[group] < need:
            continue
        if best < 0 or pools[group] < pools[best] or (pools[group] == pools[best] and total[group] < total[best]):
            best = group
    return best


@kernel
def _room_inside(room: Ints, domain: Ints, wanted: int) -> int:
    """The total room of one domain."""
    total = 0
    for i in range(len(room)):
        if domain[i] == wanted:
            total += room[i]
    return total


@kernel
def _inside(room: Ints, domain: Ints, wanted: int) -> Ints:
    """*room* within one domain, 0 elsewhere."""
    inside = np.zeros_like(room)
    for i in range(len(room)):
        if domain[i] == wanted:
            inside[i] = room[i]
    return inside


@kernel
def _spread(
    room: Ints, now_room: Ints, need: int, near: Ints, racks: Ints, zones: Ints, home: int, order: Ints, take: Ints
) -> int:
    """`kernels.spread` into *order* and *take*; the number of pools taken."""
    taken = 0
    for i in near:
        if need > 0 and room[i] > 0:
            order[taken] = i
            take[taken] = min(room[i], need)
            need -= take[taken]
            taken += 1
    if need <= 0:
        return taken
    if taken > 0:
        room, now_room = room.copy(), now_room.copy()
        for t in range(taken):
            room[order[t]] = now_room[order[t]] = 0
    if home >= 0:
        for domain in (racks, zones):
            if _room_inside(room, domain, domain[home]) >= need:
                room, now_room = _inside(room, domain, domain[home]), _inside(now_room, domain, domain[home])
                break
    best = _best_single(room, now_room, need)
    if best < 0:
        ranked = np.argsort(-room, kind="mergesort")
        room, now_room = room.copy(), now_room.copy()
        for domain in (racks, zones):
            tightest = _tightest(domain, room, ranked, need)
            if tightest >= 0:
                room, now_room = _inside(room, domain, tightest), _inside(now_room, domain, tightest)
                break
        # Fill the largest pools until the rest fits into one more.
        for i in ranked:
            if room[i] >= need:
                break
            if room[i] > 0:
                order[taken] = i
                take[taken] = room[i]
                taken += 1
                need -= room[i]
                room[i] = now_room[i] = 0
        best = _best_single(room, now_room, need)
        if best < 0:
            return taken
    order[taken] = best
    take[taken] = need
    return taken + 1


@kernel
def _allowed(size: int, least: int, step: int) -> int:
    """The largest allowed size up to *size*; 0 if none."""
    return least + (size - least) // step * step if size >= least else 0


@kernel
def _pools_by_type(pool_type: Ints, types: int) -> tuple[Ints, Ints, Ints]:
    """Start of each type's run, the pools by type, and each pool's position in its run."""
    start = np.zeros(types + 1, np.int64)
    for p in range(len(pool_type)):
        start[pool_type[p] + 1] += 1
    for t in range(types):
        start[t + 1] += start[t]
    at = start[:-1].copy()
    pools = np.empty(len(pool_type), np.int64)
    position = np.empty(len(pool_type), np.int64)
    for p in range(len(pool_type)):
        t = pool_type[p]
        pools[at[t]] = p
        position[p] = at[t] - start[t]
        at[t] += 1
    return start, pools, position


@kernel
def grow(
    plane_devices: Ints,
    plane_nodes: Ints,
    held_devices: Ints,
    devices: Ints,
    nodes: Ints,
    pools: Ints,
    ints: Ints,
    slot: Ints,
    gpu_type: Ints,
    want: Ints,
) -> Ints:
    """Grow each job to *want* workers on free devices; the sizes reached, less if they do not fit.

    Order of preference: workers that still run where the job was before, with their index; nodes of the job, most
    workers first; its rack and zone, if they hold the rest. There, or else anywhere: the one node that fits best; then
    the tightest rack, zone or cluster, largest nodes first. Nodes with enough devices free now come before nodes that
    others must leave first. A job that cannot reach *least* gets nothing.
    """
    reached = np.zeros(len(slot), np.int64)
    if len(slot) == 0:
        return reached
    owner, index = plane_devices[c.OWNER], plane_devices[c.INDEX]
    held, held_index = held_devices[c.OWNER], held_devices[c.INDEX]
    cpu_used, memory_used = plane_nodes[c.USED_CPU], plane_nodes[c.USED_MEMORY]
    usable, rack, zone = devices[c.WHOLE_OPEN], nodes[c.RACK], nodes[c.ZONE]
    pool_start, pool_stop = pools[c.POOL_START], pools[c.POOL_STOP]
    pool_node, pool_type = pools[c.POOL_NODE], pools[c.POOL_TYPE]
    least, step, whole = ints[c.MIN][slot], ints[c.STEP][slot], ints[c.MILLI][slot] // c.WHOLE
    cpu, memory = ints[c.CPU][slot], ints[c.MEMORY][slot]
    pool_count = len(pool_start)
    types = 1
    for p in range(pool_count):
        types = max(types, pool_type[p] + 1)
    for j in range(len(slot)):
        types = max(types, gpu_type[j] + 1)
    type_start, by_type, position = _pools_by_type(pool_type, types)
    longest = 0
    for t in range(types):
        longest = max(longest, type_start[t + 1] - type_start[t])
    pool_of = np.empty(len(owner), np.int32)
    free = np.zeros(pool_count, np.int64)
    now = np.zeros(pool_count, np.int64)
    # Devices that these jobs own; and free devices on which they still run.
    is_grown = slot_mask(slot)
    own_list, former_list = np.empty(len(owner), np.int32), np.empty(len(owner), np.int32)
    own_count, former_count = 0, 0
    # Jobs own only devices of the type that they want: skip other types.
    wanted = np.zeros(types, np.bool_)
    for j in range(len(slot)):
        wanted[gpu_type[j]] = True
    for p in range(pool_count):
        if not wanted[pool_type[p]]:
            continue
        for d in range(pool_start[p], pool_stop[p]):
            pool_of[d] = p
            o, h = owner[d], held[d]
            if o == _FREE:
                if usable[d] > 0:
                    free[p] += 1
                    if h == _FREE:
                        now[p] += 1
                    elif 0 <= h < len(is_grown) and is_grown[h]:
                        former_list[former_count] = d
                        former_count += 1
            elif 0 <= o < len(is_grown) and is_grown[o]:
                own_list[own_count] = d
                own_count += 1
    cpu_left, memory_left = nodes[c.CPU_FREE] - cpu_used, nodes[c.MEMORY_FREE] - memory_used
    own_start, own_devices = devices_by_job(owner, own_list[:own_count], slot)
    former_start, former_devices = devices_by_job(held, former_list[:former_count], slot)
    racks, zones = np.empty(pool_count, np.int64), np.empty(pool_count, np.int64)
    for at in range(pool_count):
        if wanted[pool_type[by_type[at]]]:
            racks[at], zones[at] = (
                rack[pool_node[by_type[at]]],
                zone[pool_node[by_type[at]]],
            )
    # Room per pool by worker shape, kept up to date for the cached shapes.
    cache_size = min(_SHAPES, len(slot))
    shapes = np.zeros((cache_size, 4), np.int64)
    rooms = np.empty((cache_size, longest), np.int64)
    now_rooms = np.empty((cache_size, longest), np.int64)
    cached_count = 0
    own = np.zeros(longest, np.int64)
    order, take = np.empty(longest + 1, np.int64), np.empty(longest + 1, np.int64)
    chosen = np.empty(len(owner), np.int64)
    for j in range(len(slot)):
        mine = own_devices[own_start[j] : own_start[j + 1]]
        have = len(mine) // whole[j]
        reached[j] = have
        size = _allowed(want[j], least[j], step[j])
        if size <= have:
            continue
        t = gpu_type[j]
        candidates = by_type[type_start[t] : type_start[t + 1]]
        cached = -1
        for s in range(cached_count):
            same = shapes[s, 0] == t and shapes[s, 1] == whole[j] and shapes[s, 2] == cpu[j]
            if same and shapes[s, 3] == memory[j]:
                cached = s
                break
        if cached < 0:
            cached_count = 0 if cached_count == cache_size else cached_count
            cached = cached_count
            cached_count += 1
            shapes[cached] = np.array([t, whole[j], cpu[j], memory[j]])
            for i in range(len(candidates)):
                p = candidates[i]
                n = pool_node[p]
                rooms[cached, i] = _room(free[p], cpu_left[n], memory_left[n], whole[j], cpu[j], memory[j])
                now_rooms[cached, i] = min(rooms[cached, i], now[p] // whole[j])
        room, now_room = rooms[cached, : len(candidates)], now_rooms[cached, : len(candidates)]
        size = min(size, _allowed(have + room.sum(), least[j], step[j]))
        if size <= have:
            continue
        reached[j] = size
        used = np.zeros(size + have + 1, np.bool_)
        for d in mine:
            own[position[pool_of[d]]] += 1
            if index[d] < len(used):
                used[index[d]] = True
        need = size - have
        # First workers that still run on devices that the job had released, then what `spread` finds.
        former = former_devices[former_start[j] : former_start[j + 1]]
        former = former[np.argsort(held_index[former], kind="mergesort")]
        at, next_index, taken, o = 0, 0, -1, 0
        near = order[:0]
        while need > 0:
            picked, workers, number = 0, 1, -1
            if at < len(former):
                number = held_index[former[at]]
                stays = True
                while at < len(former) and held_index[former[at]] == number:
                    d = former[at]
                    if owner[d] == _FREE and pool_type[pool_of[d]] == t:
                        stays = stays and (picked == 0 or pool_of[d] == pool_of[chosen[0]])
                        chosen[picked] = d
                        picked += 1
                    at += 1
                for d in mine:
                    stays = stays and index[d] != number
                if not stays or picked != whole[j]:
                    continue
                n = pool_node[pool_of[chosen[0]]]
                if (cpu[j] > 0 and cpu_left[n] < cpu[j]) or (memory[j] > 0 and memory_left[n] < memory[j]):
                    continue
                own[position[pool_of[chosen[0]]]] += picked
                if number < len(used):
                    used[number] = True
            else:
                if taken < 0:
                    near = own[: len(candidates)].nonzero()[0]
                    near = near[np.argsort(-own[near], kind="mergesort")]
                    home = near[0] if len(near) > 0 else -1
                    lo, hi = type_start[t], type_start[t + 1]
                    taken = _spread(room, now_room, need, near, racks[lo:hi], zones[lo:hi], home, order, take)
                p = candidates[order[o]]
                workers = take[o]
                o += 1
                for late in range(2):
                    for d in range(pool_start[p], pool_stop[p]):
                        ready = held[d] == _FREE or held[d] == slot[j]
                        if picked < workers * whole[j] and usable[d] > 0 and owner[d] == _FREE and ready == (late == 0):
                            chosen[picked] = d
                            picked += 1
                chosen[:picked].sort()
            for k in range(picked):
                d = chosen[k]
                if number < 0 and k % whole[j] == 0:
                    while used[next_index]:
                        next_index += 1
                    used[next_index] = True
                owner[d] = slot[j]
                index[d] = number if number >= 0 else next_index
                free[pool_of[d]] -= 1
                if held[d] == _FREE:
                    now[pool_of[d]] -= 1
            p = pool_of[chosen[0]]
            n = pool_node[p]
            need -= workers
            cpu_used[n] += workers * cpu[j]
            memory_used[n] += workers * memory[j]
            cpu_left[n] -= workers * cpu[j]
            memory_left[n] -= workers * memory[j]
            # All pools of the node have less room now, those of other types because of cores and memory.
            while p > 0 and pool_node[p - 1] == n:
                p -= 1
            while p < pool_count and pool_node[p] == n:
                for s in range(cached_count):
                    if shapes[s, 0] == pool_type[p]:
                        left = _room(free[p], cpu_left[n], memory_left[n], shapes[s, 1], shapes[s, 2], shapes[s, 3])
                        rooms[s, position[p]] = left
                        now_rooms[s, position[p]] = min(left, now[p] // shapes[s, 1])
                p += 1
        for i in near:
            own[i] = 0
        for d in mine:
            own[position[pool_of[d]]] = 0
        for d in former:
            own[position[pool_of[d]]] = 0
    return reached


@kernel
def _are_few_single_gpus(ints: Ints, slot: Ints, want: Ints) -> bool:
    """Whether these are few jobs without devices that want one GPU each: the most frequent case."""
    if len(slot) > _FEW:
        return False
    for i in range(len(slot)):
        s = slot[i]
        idle = ints[c.COUNT, s] == 0 and ints[c.HELD, s] == 0
        plain = ints[c.MILLI, s] == c.WHOLE and ints[c.CPU, s] == 0 and ints[c.MEMORY, s] == 0 and ints[c.MIN, s] == 1
        if not idle or not plain or want[i] != 1:
            return False
    return True


@kernel
def _place_single_gpus(
    plane_devices: Ints, held_devices: Ints, devices: Ints, pools: Ints, ints: Ints, slot: Ints, gpu_type: Ints
) -> Ints:
    """`grow` for jobs without devices that want one GPU: the pool with least room, free now if possible."""
    owner, held, usable = plane_devices[c.OWNER], held_devices[c.OWNER], devices[c.WHOLE_OPEN]
    reached, order = np.zeros(len(slot), np.int64), np.arange(len(slot))
    if len(slot) > 1:
        order = np.argsort(ints[c.NUMBER][slot], kind="mergesort")
    for i in order:
        best, best_late, best_room = -1, True, _BIG
        for p in range(pools.shape[1]):
            if pools[c.POOL_TYPE, p] != gpu_type[i]:
                continue
            room, now = 0, 0
            for d in range(pools[c.POOL_START, p], pools[c.POOL_STOP, p]):
                free = owner[d] == _FREE and usable[d] > 0
                room += free
                now += free and held[d] == _FREE
            late = now == 0
            if room > 0 and ((best_late and not late) or (late == best_late and room < best_room)):
                best, best_late, best_room = p, late, room
                if room == 1 and not late:
                    break
        reached[i] = best >= 0
        if best < 0:
            continue
        for d in range(pools[c.POOL_START, best], pools[c.POOL_STOP, best]):
            if owner[d] == _FREE and usable[d] > 0 and (best_late or held[d] == _FREE):
                owner[d], plane_devices[c.INDEX, d] = slot[i], 0
                break
    return reached


@kernel
def place(
    plane_devices: Ints,
    plane_nodes: Ints,
    held_devices: Ints,
    devices: Ints,
    nodes: Ints,
    pools: Ints,
    ints: Ints,
    slot: Ints,
    gpu_type: Ints,
    want: Ints,
    highest_first: bool,
) -> Ints:
    """Bring each job to *want* workers on *gpu_type*; returns the sizes reached.

    First jobs that change type release devices, then jobs that shrink; then jobs grow, largest first: they need
    contiguous room, and small ones fill the gaps.
    """
    if _are_few_single_gpus(ints, slot, want):
        return _place_single_gpus(plane_devices, held_devices, devices, pools, ints, slot, gpu_type)
    release(plane_devices, plane_nodes, held_devices, devices, ints, slot, gpu_type, want, highest_first)
    reached, grows = want.copy(), np.empty(len(slot), np.int64)
    number = 0
    for i in range(len(slot)):
        had = ints[c.COUNT, slot[i]] if ints[c.TYPE, slot[i]] == gpu_type[i] else 0
        if want[i] > had:
            grows[number] = i
            number += 1
    grows = grows[:number]
    if number > 1:
        grows = grows[np.argsort(ints[c.NUMBER][slot[grows]], kind="mergesort")]
        size = want[grows] * np.maximum(ints[c.MILLI][slot[grows]], 1)
        grows = grows[np.argsort(-size, kind="mergesort")]
    grown = grow(
        plane_devices, plane_nodes, held_devices, devices, nodes, pools, ints, slot[grows], gpu_type[grows], want[grows]
    )
    for i in range(number):
        reached[grows[i]] = grown[i]
    return reached
