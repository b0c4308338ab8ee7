"""Pages show what there is, and do what their buttons say."""

from __future__ import annotations

import html
import logging
import re
from datetime import UTC, datetime
from urllib.parse import urljoin

import psycopg
import pytest
from tests.dashboard.visitor import PREFIX, Visitor

from rota import Job, Rota
from rota.jobs.tally import keep_tallies
from rota.testing import TestRota, until

pytestmark = pytest.mark.one_server


async def some_jobs(app: TestRota) -> dict[str, Job[object]]:
    """One in each state that can be had without a worker that goes on."""

    @app.task(queue="mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    @app.task(retry=None)
    async def fail(number: int) -> None:
        raise ValueError(f"cannot do {number}")

    succeeded, dead = await send.enqueue("ana"), await fail.enqueue(7)
    await app.drain()
    queued = await send.using(delay="1h", tags=["later"]).enqueue("bob")
    cancelled = await app.jobs.cancel((await send.enqueue("eve")).id, "no longer wanted")
    return {"succeeded": succeeded, "dead": dead, "queued": queued, "cancelled": cancelled}


def ids(page: str) -> list[int]:
    return [int(found) for found in re.findall(r'data-key="job-(\d+)"', page)]


async def test_jobs_are_found_by_each_filter_and_all_of_them_together(rota_app: TestRota) -> None:
    jobs = {state: job.id for state, job in (await some_jobs(rota_app)).items()}
    visitor = Visitor(rota_app.dashboard())

    async def found(query: str) -> list[int]:
        return ids((await visitor.get(f"jobs?{query}")).text)

    assert await found("") == sorted(jobs.values(), reverse=True)
    assert [await found(f"state={state}") for state in jobs] == [[each] for each in jobs.values()]
    assert await found("queue=default") == [jobs["dead"]]
    assert await found("tag=later") == [jobs["queued"]]
    assert await found("queue=mail&state=cancelled") == [jobs["cancelled"]]
    assert await found(f"after={jobs['dead']}") == [jobs["succeeded"]]
    assert await found("arg=to%3Dbob") == [jobs["queued"]]
    assert await found("error=cannot+do") == [jobs["dead"]]
    assert await found("attempt=1&task=send") == [jobs["succeeded"]]
    assert await found("since=1h&state=queued") == [jobs["queued"]]
    assert await found("until=1h") == []
    assert "No job fits" in (await visitor.get("jobs?queue=none")).text


async def test_pages_follow_each_other_until_there_are_no_more(rota_app: TestRota) -> None:
    @rota_app.task
    async def nothing() -> None: ...

    await rota_app.enqueue_many([nothing.bind() for _ in range(120)])
    visitor, seen, path = Visitor(rota_app.dashboard()), [], "jobs"
    while path:
        page = (await visitor.get(path)).text
        seen += ids(page)
        older = re.search(r'href="([^"]+)">Older ones', page)
        path = older[1].replace("&amp;", "&") if older else ""

    assert seen == list(range(120, 0, -1))


async def test_every_link_and_form_of_a_page_leads_back_into_the_dashboard(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())
    for path in ("", "jobs", f"jobs/{jobs['dead'].id}"):
        page = await visitor.get(path)
        links = {link.replace("&amp;", "&") for link in re.findall(r'(?:href|src)="([^"#]+)"', page.text)}
        assert not [link for link in links if link.startswith("/") or ":" in link.split("?")[0]]
        for link in links:
            target = urljoin(f"{PREFIX}/{path}", link)
            assert target.startswith(f"{PREFIX}/"), link
            if any(part in target for part in ("/static/", "/jobs")):
                assert (await visitor.client.get(target)).status_code == 200, link


async def test_a_dead_job_shows_why_and_is_tried_again_by_its_button(rota_app: TestRota, rota_database: str) -> None:
    dead = (await some_jobs(rota_app))["dead"]
    page = f"jobs/{dead.id}"
    visitor = Visitor(rota_app.dashboard(auth="a-long-token"), auth=("", "a-long-token"))
    shown = (await visitor.get(page)).text

    answer = await visitor.act(page, "jobs.retry", id=str(dead.id))

    assert "ValueError: cannot do 7" in shown
    assert "its last, failed at" in shown
    assert answer.status_code == 303
    assert urljoin(f"{PREFIX}/{page}", answer.headers["location"]) == f"{PREFIX}/{page}"
    said = await visitor.said(page)
    successor = (await rota_app.dead.get(dead.id)).successor
    assert said == f"Job {dead.id} is tried again, as job {successor}."
    assert await visitor.said(page) == ""
    with psycopg.connect(rota_database) as connection:
        entries = connection.execute("select actor, action from rota.audit where action <> 'cancel'").fetchall()
    assert entries == [("token", "retry")]


async def test_a_dead_job_is_tried_with_other_arguments_or_told_why_not(rota_app: TestRota) -> None:
    dead = (await some_jobs(rota_app))["dead"]
    page = f"jobs/{dead.id}"
    visitor = Visitor(rota_app.dashboard())

    await visitor.act(page, "dead.retry", id=str(dead.id), args='{"number": "seven"}')
    refused = await visitor.said(page)
    await visitor.act(page, "dead.retry", id=str(dead.id), args="[7")
    unread = await visitor.said(page)
    await visitor.act(page, "dead.retry", id=str(dead.id), args='{"number": 8}')

    assert "was not retried, and stays" in refused
    assert "args cannot be" in unread
    assert [job.args for job in rota_app.enqueued("fail")] == [{"number": 8}]


async def test_a_job_that_waits_says_why_and_is_cancelled_with_a_reason(rota_app: TestRota) -> None:
    queued = (await some_jobs(rota_app))["queued"]
    page = f"jobs/{queued.id}"
    visitor = Visitor(rota_app.dashboard())
    shown = (await visitor.get(page)).text

    await visitor.act(page, "jobs.cancel", id=str(queued.id), reason="too late")

    assert "Why is it not running?" in shown
    assert "It is due at" in shown
    assert (await rota_app.jobs.get(queued.id)).reason == "too late"
    assert "too late" in (await visitor.get(page)).text


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("jobs/999", 404),
        ("jobs/99999999999999999999999", 404),
        ("jobs/x", 404),
        ("jobs?after=x", 422),
        ("jobs?after=99999999999999999999", 422),
        ("jobs?state=lost", 422),
        ("jobs?task=%00", 422),
        ("jobs?arg=to", 422),
        ("jobs?since=yesterday", 422),
        ("jobs?until=2030-01-31T09:00", 422),
        ("jobs?member=me", 422),
        ("jobs?queue=" + "q" * 501, 422),
        ("jobs?_fragment=none", 404),
        ("jobs/", 404),
        ("static/x/../../../etc/passwd", 404),
        ("static/x/none.css", 404),
    ],
)
async def test_what_is_not_there_is_said_in_words(path: str, status: int, rota_app: TestRota) -> None:
    answer = await Visitor(rota_app.dashboard()).get(path)

    assert answer.status_code == status


@pytest.mark.writes_nothing
async def test_files_are_kept_for_good_and_those_of_another_release_not_at_all(rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard())
    page = (await visitor.get("jobs")).text
    address = re.search(r'href="(static/\w+/rota.css)"', page)
    assert address is not None

    now = await visitor.get(address[1])
    old = await visitor.get("static/0123456789ab/rota.css")

    assert "immutable" in now.headers["cache-control"]
    assert old.headers["cache-control"] == "no-store"
    assert now.headers["content-type"].startswith("text/css")


@pytest.mark.writes_nothing
async def test_a_dashboard_without_a_mount_finds_its_own_files(rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard())
    visitor.client._transport.app = rota_app.dashboard()  # type: ignore[attr-defined]

    page = await visitor.client.get("/jobs")

    assert 'href="static/' in page.text
    assert (await visitor.client.get("/")).status_code == 200


async def test_redacted_arguments_are_seen_nowhere(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def pay(order: int, card: dict[str, str]) -> None:
        raise ValueError(f"the card {card['number']} is not valid")

    job = await pay.enqueue(7, {"number": "4111-1111-1111-1111", "name": "Ana"})
    await rota_app.drain()
    by_name, all_of_it = (Visitor(rota_app.dashboard(redact=names)) for names in (["number"], ["*"]))

    for path in ("jobs", f"jobs/{job.id}", "jobs?_fragment=list", "dead"):
        named, everything = (await by_name.get(path)).text, (await all_of_it.get(path)).text
        assert "4111" not in named + everything, path
        assert "Ana" in named
        assert "Ana" not in everything


@pytest.mark.writes_nothing
@pytest.mark.parametrize(
    "path", ["jobs?arg=card.number%3D4111", "jobs?error=4111", "dead?error=4111", "api/v1/dead?error=4111"]
)
async def test_nobody_guesses_what_they_may_not_see(path: str, rota_app: TestRota) -> None:
    visitor = Visitor(rota_app.dashboard(redact=["number"]))

    assert (await visitor.get(path)).status_code == 422
    assert (await visitor.get("jobs?arg=order%3D7")).status_code == 200


async def test_facets_count_what_fits_and_narrow_it(rota_app: TestRota) -> None:
    await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())

    everything = (await visitor.get("jobs")).text
    narrowed = (await visitor.get("jobs?queue=mail")).text

    assert "4 jobs fit." in everything
    assert '<a href="jobs?queue=mail">mail <span>3</span></a>' in everything
    assert "3 jobs fit." in narrowed
    assert '<a href="jobs?state=cancelled&amp;queue=mail">' in narrowed or "queue=mail&amp;state=cancelled" in narrowed


async def test_letters_that_died_of_the_same_are_one_thing_to_decide_about(rota_app: TestRota) -> None:
    @rota_app.task(retry=None)
    async def fail(number: int) -> None:
        raise ValueError(f"cannot do {number}")

    await rota_app.enqueue_many([fail.bind(number) for number in range(12)])
    await rota_app.drain()
    visitor = Visitor(rota_app.dashboard())
    group = re.search(r'data-key="group-([^"]+)"', (await visitor.get("dead")).text)
    assert group is not None

    await visitor.act("dead", "dead.retry_group", group=group[1], canary="10")
    tried = await visitor.said("dead")
    await visitor.act("dead", "dead.acknowledge_group", group=group[1], note="known")

    assert tried == "10 dead letter(s) are tried again."
    assert await visitor.said("dead") == "2 dead letter(s) are put away."
    assert {letter.resolution for letter in await rota_app.dead.list(resolved=None)} == {"retried", "acknowledged"}


async def test_a_role_that_may_only_look_sees_every_page_and_changes_nothing(
    rota_app: TestRota, rota_database: str
) -> None:
    queued = (await some_jobs(rota_app))["queued"]
    await rota_app.migrate(roles=True)
    with psycopg.connect(rota_database, autocommit=True) as admin:
        name = f"looker_{admin.info.dbname}"
        admin.execute(f"create role {name} login in role rota_read")
    try:
        async with Rota(f"{rota_database} user={name}") as looker:
            visitor = Visitor(looker.dashboard())
            pages = [(await visitor.get(path)).text for path in ("", "jobs", f"jobs/{queued.id}")]
            await visitor.act(f"jobs/{queued.id}", "jobs.cancel", id=str(queued.id))
            said = await visitor.said("jobs")
    finally:
        with psycopg.connect(rota_database, autocommit=True) as admin:
            admin.execute(f"drop role {name}")

    assert not [page for page in pages if "say trouble" in page and "cannot be read" in page]
    assert "permission denied" in said
    assert (await rota_app.jobs.get(queued.id)).state == "queued"


async def test_pages_cannot_write_even_by_mistake(rota_app: TestRota) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        async with rota_app.looking.transaction() as connection:
            await connection.execute("create table written (id int)")


async def test_a_database_that_went_away_leaves_the_page_what_it_knew_and_says_how_old_that_is(
    rota_app: TestRota, monkeypatch: pytest.MonkeyPatch
) -> None:
    await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())
    before = ids((await visitor.get("jobs")).text)
    monkeypatch.setattr("rota.dashboard.looking._FRESH_SECONDS", 0.0)
    monkeypatch.setattr("rota.dashboard.looking._DEADLINE_SECONDS", 0.0)

    after = (await visitor.get("jobs")).text
    never_seen = await visitor.get("jobs?state=queued")

    assert ids(after) == before
    assert "Data from" in after
    assert never_seen.status_code == 503
    assert "This cannot be read now" in never_seen.text


async def test_what_a_body_logged_is_shown_with_its_job_without_what_is_redacted(rota_app: TestRota) -> None:
    @rota_app.task
    async def pay(card: str) -> None:
        logging.getLogger("shop").warning("charging %s <b>now</b>", card)

    job = await pay.enqueue("4111-1111-1111-1111")
    await rota_app.drain()
    plain, redacted = (Visitor(rota_app.dashboard(redact=names)) for names in ((), ["card"]))

    shown = (await plain.get(f"jobs/{job.id}")).text
    told = (await plain.get(f"api/v1/jobs/{job.id}/logs")).json()["items"]
    hidden = (await redacted.get(f"jobs/{job.id}")).text + (await redacted.get(f"api/v1/jobs/{job.id}/logs")).text

    assert "charging 4111-1111-1111-1111 &lt;b&gt;now&lt;/b&gt;" in shown
    assert [line["message"] for line in told] == ["charging 4111-1111-1111-1111 <b>now</b>"]
    assert "4111" not in hidden
    assert "charging" in hidden


async def all_counted(app: TestRota) -> bool:
    """Whether a round has counted the last of what there is: a day without tallies takes several."""
    told = await app.database.run_steps(keep_tallies())
    return told is not None and not told.unfinished


async def test_pictures_show_what_was_done_and_each_part_of_them_leads_to_it(
    rota_app: TestRota, history_aside: None
) -> None:
    await some_jobs(rota_app)
    rota_app.advance("3m")
    await until(lambda: all_counted(rota_app), 30, "all is counted")
    visitor = Visitor(rota_app.dashboard())

    page = (await visitor.get("?span=1h")).text
    links = [link.replace("&amp;", "&") for link in re.findall(r'<a href="(jobs\?[^"]*since=[^"]*)"', page)]
    found = {tuple(ids((await visitor.get(link)).text)) for link in links}
    series = (await visitor.get("api/v1/trends/series?since=1h")).json()

    assert 'class="fill is-succeeded"' in page
    assert 'class="fill is-failed"' in page
    assert "Failures by task and hour" in page
    assert links
    assert any(2 in each for each in found)
    assert sum(bucket["failed"] for bucket in series["buckets"]) == 1
    assert (await visitor.get("?span=1y")).status_code == 422


async def test_the_api_finds_and_counts_as_the_page_does(rota_app: TestRota) -> None:
    jobs = await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())

    found = (await visitor.get("api/v1/jobs/search?arg=to%3Dbob")).json()
    counted = (await visitor.get("api/v1/jobs/count?queue=mail")).json()
    refused = [await visitor.get(f"api/v1/jobs/search?{query}") for query in ("since=now", "arg=x", "member=me")]

    assert [job["id"] for job in found["jobs"]] == [str(jobs["queued"].id)]
    assert (counted["total"], counted["exact"], counted["tasks"]) == (3, True, {"send": 3})
    assert [answer.status_code for answer in refused] == [422] * 3


async def test_a_job_is_told_as_a_call_that_makes_another_unless_it_hides_something(rota_app: TestRota) -> None:
    dead = (await some_jobs(rota_app))["dead"]
    open_, hiding = Visitor(rota_app.dashboard()), Visitor(rota_app.dashboard(redact=["number"]))

    shown = html.unescape((await open_.get(f"jobs/{dead.id}")).text)
    hidden = html.unescape((await hiding.get(f"jobs/{dead.id}")).text)

    assert "await app.tasks['fail'].enqueue(**{'number': 7})" in shown
    assert f'"$DASHBOARD/api/v1/jobs/{dead.id}"' in shown
    assert "enqueue(**" not in hidden


async def test_the_letters_that_fit_are_had_as_json(rota_app: TestRota) -> None:
    dead = (await some_jobs(rota_app))["dead"]
    visitor = Visitor(rota_app.dashboard())

    page = (await visitor.get("dead?task=fail&which=all")).text
    link = re.search(r'href="(api/v1/dead[^"]*)">As JSON', page)
    assert link is not None
    told = (await visitor.get(html.unescape(link[1]))).json()

    assert "task=fail" in link[1]
    assert "which=all" in link[1]
    assert [letter["id"] for letter in told["items"]] == [str(dead.id)]


async def test_a_queue_is_paused_until_a_time_and_its_limit_is_told_with_what_runs(rota_app: TestRota) -> None:
    await some_jobs(rota_app)
    visitor = Visitor(rota_app.dashboard())

    await visitor.act("queues", "queues.pause", name="mail", until="2080-01-31T09:00Z", **{"for": ""})
    await visitor.act("queues", "queues.limit", name="mail", running="3", rate="")

    assert (await rota_app.queues.get("mail")).paused_until == datetime(2080, 1, 31, 9, tzinfo=UTC)
    assert "0 of 3 at once" in (await visitor.get("queues")).text
