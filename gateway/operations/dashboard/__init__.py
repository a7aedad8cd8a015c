"""The admin dashboard: pages under `/admin`, rendered by the gateway that they show.

Every page and every change works without JavaScript; `static/dashboard.js` only updates figures. No page may hold an
inline script or style: the Content-Security-Policy refuses them, also as attributes.

How a page is added:

1. A module with one noun, `gateway/admin/experiments.py`, and a template of that name that extends
   `base.html` and takes tables, charts and forms from `macros.html` and `charts.html`. Handlers answer with
   `rendering.page`:

       @get("/experiments")
       async def show_experiments(request: HttpRequest) -> Response[bytes]:
           found = await query_page(request, EXPERIMENTS)
           return page(request, "experiments.html", "Experiments", found=found)

       EXPERIMENTS_PAGE = Page(title="Experiments", path="/experiments", handlers=(show_experiments, stop))

   Figures come from the functions of its file, as those of the JSON endpoints do, from
   `operations_of(request)`, or from queries that an index answers: a page is there within 300 ms at a million requests.

2. One line in `gateway.admin.routes.PAGES`. The link is there once the page is, in that order.

3. A change is a form of `method="post"` with `{{ m.csrf(csrf) }}`, and a handler that ends in `rendering.back_to(path,
   "what was done")`. Its guard has checked the token and the role: `admin`, unless the handler says `opt=OPERATOR` (of
   `gateway.tenancy.guard`). Templates ask `{% if may("operator") %}` before they show a form. The order goes
   through the same function as the JSON endpoint's, which writes its audit row with
   `actor_of(request)`, before and after.

4. An `ApiError` becomes a page that says what is wrong, with its status (503 while the database is down). A list has
   its empty state in the template, which says how to get the first row.

5. The view's JSON endpoint under `/admin/api` gives CSV too: lists do with `format=csv` (`resource.page_of`),
   others by `gateway.admin.resource.csv_response`. A session's cookie opens these as an admin key does; changes
   come with the header `x-csrf-token` then.

6. Tests: `tests/gateway/operations/dashboard`, HTTP in a module of the page's name, and a line in PAGES of
   `test_browser.py`.
"""
